// What is known of a batch, as the API shows it and as it is kept on disk: one JSON for both.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "http/batches/batch_lines.h"

namespace outrider {

enum class BatchStatus : uint8_t {
  kValidating,
  kFailed,
  kInProgress,
  kFinalizing,
  kCompleted,
  kCancelling,
  kCancelled
};
constexpr size_t kNumBatchStatuses = 7;

struct BatchRecord {
  std::string id;
  std::string endpoint;
  std::string input_file_id;
  std::string output_file_id;     // empty: there is none, or none yet
  std::string error_file_id;      // as output_file_id
  std::string metadata = "null";  // JSON
  BatchStatus status = BatchStatus::kValidating;
  std::array<int64_t, kNumBatchStatuses> since = {};  // of each status; 0 = it never had it
  int64_t num_lines = 0;
  int64_t num_completed = 0;
  int64_t num_failed = 0;
  std::vector<BatchLineFault> faults;

  bool has_ended() const {
    return status == BatchStatus::kFailed || status == BatchStatus::kCompleted ||
           status == BatchStatus::kCancelled;
  }
  void enter(BatchStatus next);  // now
};

// OpenAI's batch object.
std::string batch_json(const BatchRecord& record);
// Of what batch_json() has made. Throws Error that names the file.
BatchRecord read_batch_record(const std::filesystem::path& path);

}  // namespace outrider
