// The results of a batch: one JSON line per answered request, appended as they come, so that a
// killed job keeps what it has. No other file is ever written to or cut by mistake. Made by whoever
// runs the batch (`outrider batch`, the queue of /v1/batches); append() may be called on any
// thread.
#pragma once

#include <chrono>
#include <mutex>
#include <set>
#include <string>

namespace outrider {

struct BatchResult {
  std::string custom_id;
  int status = 200;
  std::string body;            // JSON in one line, as the next
  std::string error = "null";  // null for a request that was answered
};

// Throws Error when both names lead to one file, through links or otherwise.
void refuse_same_file(const std::string& input, const std::string& output);

class ResultFile {
 public:
  // ids: the custom_ids of the input. A file that is not empty is refused, unless resume is set.
  // Then it must hold results of a batch: a last line that a kill has torn is cut off, and lines of
  // failed requests whose ids are asked again are dropped. Throws Error for any other file, which
  // is left as it is, and for one that another process writes results to.
  ResultFile(const std::string& path, const std::set<std::string>& ids, bool resume);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  // The custom_ids that were answered without an error before.
  const std::set<std::string>& answered() const { return answered_; }

  // A whole line, which is on the disk a second later at the latest when more are appended. Throws
  // Error when it cannot be written, and then for every further one: half a line stays the last.
  void append(const BatchResult& result);
  // Waits for the disk.
  void finish();

 private:
  void resume(const std::set<std::string>& ids);
  void write(const std::string& line);
  void sync();

  const std::string path_;
  int descriptor_ = -1;
  std::set<std::string> answered_;
  std::mutex mutex_;
  bool is_broken_ = false;
  std::chrono::steady_clock::time_point last_sync_ = std::chrono::steady_clock::now();
};

}  // namespace outrider
