// See serve_run.h.
#include "runtime/commands/bench/serve/serve_run.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/base/error.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kProgressInterval = std::chrono::milliseconds(500);
constexpr auto kStopInterval = std::chrono::milliseconds(100);
constexpr int32_t kMostInFlight = 4096;

// One connection per request in flight: the usual soft limit of 1024 files is too low.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Threads take the requests in order. The one whose turn it is waits for the next request's time
// and passes the turn on before it sends; when nobody waits for the turn, it makes another thread.
class Run {
 public:
  Run(const ServeTarget& target,
      const std::vector<PlannedRequest>& requests,
      int32_t max_concurrency,
      const ProgressFunction& progress)
      : target_(target),
        requests_(requests),
        records_(requests.size()),
        max_threads_(max_concurrency > 0 ? std::min(max_concurrency, kMostInFlight)
                                         : kMostInFlight),
        progress_(progress) {}

  std::vector<RequestRecord> go() {
    allow_many_files();
    {
      const std::lock_guard turn(turn_);
      if (!add_thread()) throw Error("cannot make a thread to send requests");
    }
    std::unique_lock lock(ended_mutex_);
    while (!ended_.wait_for(lock, kProgressInterval, [&] { return num_threads_ == 0; })) {
      lock.unlock();
      if (progress_ && !progress_(num_done_)) stopped_ = true;
      lock.lock();
    }
    lock.unlock();
    for (std::thread& thread : threads_) thread.join();
    records_.resize(num_sent_);
    return std::move(records_);
  }

 private:
  double now_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // Under the turn. False: there are no more threads; requests wait for one that is busy, and their
  // lateness is recorded.
  bool add_thread() {
    ++num_threads_;
    ++num_waiting_;
    try {
      threads_.emplace_back([this] { work(); });
      return true;
    } catch (const std::system_error&) {
      --num_threads_;
      --num_waiting_;
      return false;
    }
  }

  void work() {
    HttpClient client(target_.address, {.read = target_.request_timeout});
    for (size_t index = 0; take_next(&index); ++num_waiting_) {
      RequestRecord* record = &records_[index];
      try {
        perform(client, requests_[index].body, record);
      } catch (const std::exception& error) {
        record->failure = "broken stream";
        record->error = error.what();
        record->end_s = now_s();
      }
      ++num_done_;
    }
    const std::lock_guard lock(ended_mutex_);
    --num_threads_;
    ended_.notify_all();
  }

  // Waits for the turn and for the next request's time. False: nothing is left to send.
  bool take_next(size_t* index) {
    const std::lock_guard turn(turn_);
    --num_waiting_;
    if (num_sent_ == requests_.size()) return false;
    const PlannedRequest& request = requests_[num_sent_];
    const auto due = start_ + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(request.scheduled_s));
    while (!stopped_ && Clock::now() < due)
      std::this_thread::sleep_until(std::min(due, Clock::now() + kStopInterval));
    if (stopped_) return false;
    *index = num_sent_++;
    RequestRecord& record = records_[*index];
    record.scheduled_s = request.scheduled_s;
    record.input_len = request.input_len;
    record.output_len = request.output_len;
    const bool nobody_waits = num_waiting_ == 0;
    if (num_sent_ < requests_.size() && nobody_waits && num_threads_ < max_threads_) add_thread();
    return true;
  }

  void perform(HttpClient& client, const std::string& body, RequestRecord* record) {
    CompletionStream stream(record);
    const double limit_s = std::chrono::duration<double>(target_.request_timeout).count();
    bool too_long = false;
    const auto receive = [&](std::string_view bytes) {
      const double time_s = now_s();
      too_long = time_s - record->sent_s > limit_s;
      return !too_long && stream.receive(time_s, bytes);
    };
    record->sent_s = now_s();
    const HttpOutcome outcome =
        client.exchange({.path = target_.endpoint,
                         .headers = target_.headers,
                         .body = body,
                         .on_head = [&](int status) { stream.begin(status); },
                         .on_bytes = receive});
    if (too_long || outcome == HttpOutcome::kTimeout) {
      record->failure = "timeout";
      record->error = fmt::format("no complete answer within {:g} s", limit_s);
    } else if (outcome == HttpOutcome::kNoConnection) {
      record->failure = "connect";
      record->error = "no connection to " + target_.address.origin;
    } else if (outcome == HttpOutcome::kBroken && record->failure.empty()) {
      // Also after the last token: what the client of a user would have reported.
      record->failure = "broken stream";
      record->error = record->http_status == 0 ? "the connection ended before an answer"
                                               : "the connection ended inside the answer";
    }
    stream.finish(now_s());
  }

  const ServeTarget& target_;
  const std::vector<PlannedRequest>& requests_;
  std::vector<RequestRecord> records_;  // a record belongs to the thread that performs its request
  const int32_t max_threads_;
  const ProgressFunction& progress_;
  const Clock::time_point start_ = Clock::now();

  std::mutex turn_;  // guards these two
  size_t num_sent_ = 0;
  std::vector<std::thread> threads_;

  std::atomic<int32_t> num_waiting_ = 0;  // threads that want the turn or will at once
  std::atomic<int32_t> num_threads_ = 0;  // that have not ended
  std::atomic<int32_t> num_done_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex ended_mutex_;
  std::condition_variable ended_;
};

}  // namespace

std::vector<RequestRecord> run_requests(const ServeTarget& target,
                                        const std::vector<PlannedRequest>& requests,
                                        int32_t max_concurrency,
                                        const ProgressFunction& progress) {
  return Run(target, requests, max_concurrency, progress).go();
}

}  // namespace outrider
