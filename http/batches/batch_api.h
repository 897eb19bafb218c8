// /v1/files and /v1/batches, OpenAI's, without a transport: paths to what the store and the queue
// do. Thread-safe: handle() runs on the caller's thread and never waits for a batch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "http/api/service_call.h"
#include "http/api/serving_metrics.h"
#include "http/batches/batch_queue.h"
#include "http/batches/file_store.h"

namespace outrider {

// Paths that are for BatchApi. Clients may leave /v1 out.
bool is_batch_path(std::string_view path);
// POST of a file: the only request whose body is a form, and may be as large as a file.
bool is_file_upload(std::string_view method, std::string_view path);

class BatchApi {
 public:
  // All must outlive this.
  BatchApi(FileStore& files, BatchQueue& queue, ServingMetrics& metrics, int64_t max_file_bytes);

  // Never throws.
  ServerResponse handle(const ServiceCall& call);
  void begin_drain() { queue_.begin_stop(); }

 private:
  ServerResponse route(const ServiceCall& call);
  std::string add_file(const ServiceCall& call);
  std::string list_files(std::string_view query) const;
  std::string delete_file(const std::string& id);
  ServerResponse content_of(const std::string& id) const;
  std::string create_batch(const ServiceCall& call);
  std::string list_batches(std::string_view query) const;

  FileStore& files_;
  BatchQueue& queue_;
  ServingMetrics& metrics_;
  const int64_t max_file_bytes_;
};

}  // namespace outrider
