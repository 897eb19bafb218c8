// The batches of /v1/batches: checked as they come, run one at a time, oldest first, beside the
// requests of others and behind them. Two threads of its own; all else may be called on any thread.
// What is not ended when the server stops goes on at its next start, from the answers that it has.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "http/api/openai_request.h"
#include "http/api/service_call.h"
#include "http/batches/batch_record.h"
#include "http/batches/batch_run.h"
#include "http/batches/file_store.h"

namespace outrider {

class BatchQueue {
 public:
  struct Setup {
    std::function<ServerResponse(ServiceCall)> ask;  // answers a line
    CallContext context;                             // what lines are checked against
    int num_workers = 1;                             // lines under way
    int num_places = 1;                              // of the engine's queue, for their requests
    // Behind everybody who gives no priority, however long they have waited.
    int32_t least_priority = 1000;
  };
  struct Limits {
    size_t max_lines = 50000;  // of a batch
    size_t max_faults = 100;   // that are listed
    size_t max_batches = 1000;
  };

  // Reads what is there and begins. The store, and what setup refers to, must outlive this.
  BatchQueue(FileStore& files, Setup setup, Limits limits);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  // Throws ApiError when there is no such file, or when too many batches wait.
  BatchRecord create(const std::string& input_file_id,
                     const std::string& endpoint,
                     const std::string& metadata);
  std::optional<BatchRecord> find(const std::string& id) const;
  std::vector<BatchRecord> list() const;  // oldest first
  // nullopt when there is none. Throws ApiError when it has ended.
  std::optional<BatchRecord> cancel(const std::string& id);
  // False when there is no such file. Throws ApiError while a batch needs it.
  bool remove_file(const std::string& id);

  // From now on no line is begun; those under way may end.
  void begin_stop();

 private:
  void load();
  void make_room();
  void check_new_ones();
  void run_next_ones();
  void check(const std::string& id);
  void run(const std::string& id);
  BatchInput read_input(const BatchRecord& record) const;
  // True when all lines are answered. Throws when the results cannot be written.
  bool answer(const BatchRecord& record, std::vector<BatchLine> lines);
  BatchRun::Wish look(const std::string& id);
  void count(const std::string& id, size_t num_before, const BatchRun& run);
  void end(BatchRecord* record, BatchStatus status);
  void fail(BatchRecord* record, std::vector<BatchLineFault> faults);
  bool save(const BatchRecord& record) const;  // false, and logged, when it cannot be written
  BatchRecord copy_of(const std::string& id) const;
  std::string next_of(std::initializer_list<BatchStatus> statuses) const;

  FileStore& files_;
  const Setup setup_;
  const Limits limits_;
  const std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, BatchRecord> records_;  // ids ascend with time
  std::string running_;                         // the batch whose lines are being asked
  bool stopping_ = false;
  std::thread checker_;
  std::thread runner_;
};

}  // namespace outrider
