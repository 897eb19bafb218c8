// See serve_runner.h.
#include "runtime/commands/bench/serve/serve_runner.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/commands/bench/serve/serve_stream.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kProgressInterval = std::chrono::milliseconds(500);

// One connection per request in flight: the usual soft limit of 1024 files is too low.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class Run {
 public:
  Run(const ServeTarget& target,
      const std::vector<PlannedRequest>& requests,
      const RunLimits& limits,
      const ProgressFunction& progress)
      : target_(target),
        requests_(requests),
        records_(requests.size()),
        max_in_flight_(limits.max_concurrency > 0 ? std::min(limits.max_concurrency, kMostInFlight)
                                                  : kMostInFlight),
        send_until_s_(limits.send_until_s),
        progress_(progress) {}

  std::vector<RequestRecord> go() {
    allow_many_files();
    start_ = Clock::now();
    const int32_t num_sent = send_all();
    wait_for([&] { return num_done_ == num_sent; });
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    records_.resize(static_cast<size_t>(num_sent));
    return std::move(records_);
  }

 private:
  // How many of them, from the first.
  int32_t send_all() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      RequestRecord& record = records_[i];
      record.scheduled_s = requests_[i].scheduled_s;
      record.input_len = requests_[i].input_len;
      record.output_len = requests_[i].output_len;
      if (record.scheduled_s > send_until_s_) return static_cast<int32_t>(i);
      wait_until_due(record.scheduled_s);
      wait_for([&] { return stopped_ || num_in_flight_ < max_in_flight_; });
      if (stopped_ || now_s() > send_until_s_) return static_cast<int32_t>(i);
      record.slot_free_s = take_slot();
      hand_over(i);
    }
    return static_cast<int32_t>(requests_.size());
  }

  double now_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void wait_until_due(double scheduled_s) {
    const auto due = start_ + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(scheduled_s));
    while (!stopped_ && Clock::now() < due) {
      std::this_thread::sleep_until(std::min(due, next_progress_));
      report_progress();
    }
  }

  // Waits for the condition, which is asked under the lock.
  template <typename Condition>
  void wait_for(const Condition& condition) {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        if (done_.wait_until(lock, next_progress_, condition)) return;
      }
      report_progress();
    }
  }

  // When the place that the next request takes became free; 0 for one that was never taken.
  double take_slot() {
    const std::lock_guard lock(mutex_);
    double free_s = 0;
    if (num_slots_used_ < max_in_flight_) {
      ++num_slots_used_;
    } else {
      free_s = slots_freed_s_.front();
      slots_freed_s_.pop_front();
    }
    ++num_in_flight_;
    return free_s;
  }

  void hand_over(size_t index) {
    bool spawn = false;
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(index);
      spawn = waiting_.size() > num_idle_;
    }
    work_.notify_one();
    if (!spawn) return;
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // No more threads: the request waits for one that is busy, and its lateness is recorded.
      if (threads_.empty()) throw Error("cannot make a thread to send requests");
    }
  }

  void work() {
    HttpClient client(target_.address, {.read = target_.request_timeout});
    std::unique_lock lock(mutex_);
    while (true) {
      ++num_idle_;
      work_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
      --num_idle_;
      if (waiting_.empty()) return;
      const size_t index = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      perform(client, requests_[index].body, &records_[index]);
      lock.lock();
      ++num_done_;
      --num_in_flight_;
      num_failed_ += records_[index].failure == ServeFailure::kNone ? 0 : 1;
      slots_freed_s_.push_back(records_[index].end_s);
      done_.notify_one();
    }
  }

  void perform(HttpClient& client, const std::string& body, RequestRecord* record) {
    CompletionStream stream(record);
    const double limit_s = std::chrono::duration<double>(target_.request_timeout).count();
    HttpExchange exchange;
    exchange.method = "POST";
    exchange.path = target_.endpoint;
    exchange.headers = target_.headers;
    exchange.body = body;
    exchange.on_head = [&](int status) { stream.begin(status); };
    bool too_long = false;
    exchange.on_bytes = [&](std::string_view bytes) {
      const double time_s = now_s();
      too_long = time_s - record->sent_s > limit_s;
      return !too_long && stream.receive(time_s, bytes);
    };
    record->sent_s = now_s();
    const HttpOutcome outcome = client.exchange(exchange);
    if (too_long || outcome == HttpOutcome::kTimeout) {
      record->failure = ServeFailure::kTimeout;
      record->error = fmt::format("no complete answer within {:g} s", limit_s);
    } else if (outcome == HttpOutcome::kNoConnection) {
      record->failure = ServeFailure::kConnect;
      record->error = "no connection to " + target_.address.origin;
    } else if (outcome == HttpOutcome::kBroken && record->failure == ServeFailure::kNone) {
      // Also after the last token: what the client of a user would have reported.
      record->failure = ServeFailure::kBrokenStream;
      record->error = record->http_status == 0 ? "the connection ended before an answer"
                                               : "the connection ended inside the answer";
    }
    stream.finish(now_s());
  }

  void report_progress() {
    if (Clock::now() < next_progress_) return;
    next_progress_ = Clock::now() + kProgressInterval;
    RunProgress now;
    {
      const std::lock_guard lock(mutex_);
      now = {
          static_cast<int32_t>(requests_.size()), num_done_, num_failed_, num_in_flight_, now_s()};
    }
    if (progress_ && !progress_(now)) stopped_ = true;
  }

  const ServeTarget& target_;
  const std::vector<PlannedRequest>& requests_;
  std::vector<RequestRecord> records_;  // a record belongs to the thread that performs its request
  const int32_t max_in_flight_;
  const double send_until_s_;
  const ProgressFunction& progress_;
  Clock::time_point start_;
  Clock::time_point next_progress_ = Clock::now() + kProgressInterval;
  bool stopped_ = false;  // of this and the two before it: the running thread's own
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable work_;  // a request waits, or the run is closing
  std::condition_variable done_;  // a request has ended
  std::deque<size_t> waiting_;
  std::deque<double> slots_freed_s_;
  size_t num_idle_ = 0;
  int32_t num_slots_used_ = 0;
  int32_t num_in_flight_ = 0;
  int32_t num_done_ = 0;
  int32_t num_failed_ = 0;
  bool closing_ = false;
};

}  // namespace

std::vector<RequestRecord> run_requests(const ServeTarget& target,
                                        const std::vector<PlannedRequest>& requests,
                                        const RunLimits& limits,
                                        const ProgressFunction& progress) {
  return Run(target, requests, limits, progress).go();
}

}  // namespace outrider
