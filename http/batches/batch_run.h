// The lines of a batch through the API, many at once: the workers that ask, and what is known of
// them meanwhile. Used by `outrider batch` and by the queue of /v1/batches.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "http/api/service_call.h"
#include "http/batches/batch_lines.h"
#include "http/batches/result_file.h"

namespace outrider {

class BatchRun {
 public:
  struct Setup {
    std::function<ServerResponse(ServiceCall)> ask;
    // Takes the result of a line, on any thread. What it throws ends the run.
    std::function<void(const BatchLine&, const BatchResult&)> keep;
    int num_workers = 1;
    int num_places = 1;  // of the engine's queue; a line of more requests goes alone
    int32_t least_priority = INT32_MIN;
  };
  struct Counts {
    size_t num_done = 0;  // kept, the failed ones too
    size_t num_failed = 0;
    int64_t num_tokens = 0;  // of answers
  };
  // kStop: no further lines, those under way may end. kCut: those are given up too.
  enum class Wish : uint8_t { kGo, kStop, kCut };

  BatchRun(Setup setup, std::vector<BatchLine> lines);

  // Until all lines are answered, or until `look`, which is called again and again on this thread
  // and waits a moment itself, wants no more. True when all are answered. Throws what keep threw.
  bool run(const std::function<Wish()>& look);

  size_t num_lines() const { return lines_.size(); }
  Counts counts() const { return {num_done_, num_failed_, num_tokens_}; }

 private:
  // Lines whose requests find a place in the engine's queue at once; a larger line goes alone.
  class Room {
   public:
    explicit Room(int num_requests) : num_free_(num_requests), size_(num_requests) {}
    void enter(int num_requests);
    void leave(int num_requests);

   private:
    std::mutex mutex_;
    std::condition_variable freed_;
    int num_free_;
    const int size_;
  };

  void work();
  bool answer(const BatchLine& line);
  std::optional<ServerResponse> ask(const BatchLine& line);
  void stop(bool cut_off);

  const Setup setup_;
  const std::vector<BatchLine> lines_;
  Room room_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> num_done_{0};
  std::atomic<size_t> num_failed_{0};
  std::atomic<int64_t> num_tokens_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> cut_off_{false};
  std::mutex mutex_;
  std::string problem_;
};

}  // namespace outrider
