// See serve_run.h.
#include "runtime/commands/bench/serve/serve_run.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/files/json_depth.h"
#include "runtime/ranks/job/signals.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kRetryInterval = std::chrono::milliseconds(100);
constexpr size_t kMaxBytes = 16 << 20;
constexpr HttpClient::Timeouts kPatience = {std::chrono::milliseconds(5000),
                                            std::chrono::milliseconds(30000)};

HttpClient::Answer ask(const ServeTarget& target, const std::string& path) {
  return HttpClient(target.address, kPatience).get(path, target.headers, kMaxBytes);
}

std::string state_of(const HttpClient::Answer& answer) {
  if (answer.outcome == HttpOutcome::kNoConnection) return "no connection";
  if (answer.outcome == HttpOutcome::kTimeout) return "no answer";
  if (answer.outcome == HttpOutcome::kBroken) return "no HTTP answer";
  return fmt::format("HTTP {}", answer.status);
}

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
    records_[*index] = {.input_len = request.input_len,
                        .output_len = request.output_len,
                        .scheduled_s = request.scheduled_s};
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
    if (too_long || outcome == HttpOutcome::kTimeout)
      stream.fail("timeout", fmt::format("no complete answer within {:g} s", limit_s));
    if (outcome == HttpOutcome::kNoConnection)
      stream.fail("connect", "no connection to " + target_.address.origin);
    if (outcome ==
        HttpOutcome::kBroken)  // also after the last token: so a user's client reports it
      stream.fail("broken stream",
                  record->http_status == 0 ? "the connection ended before an answer"
                                           : "the connection ended inside the answer");
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

void wait_until_ready(const ServeTarget& target, int32_t timeout_s) {
  const auto end = Clock::now() + std::chrono::seconds(timeout_s);
  while (true) {
    HttpClient::Answer answer = ask(target, "/health");
    if (answer.status == 404) answer = ask(target, "/v1/models");
    if (answer.status == 200) return;
    if (Clock::now() >= end)
      throw Error(fmt::format("the server at {} was not ready within {} s: {}",
                              target.address.origin,
                              timeout_s,
                              state_of(answer)));
    if (wait_stop_signal(kRetryInterval)) throw Error("stopped by a signal");
  }
}

AskedModel asked_model(const ServeTarget& target, const std::string& name) {
  const HttpClient::Answer answer = ask(target, "/v1/models");
  const bool is_deep = json_nests_deeper_than(answer.body, kMaxJsonDepth);
  const Json json = Json::parse(is_deep ? "" : answer.body, nullptr, false);
  for (const Json& entry : json.is_object() ? json.value("data", Json()) : Json()) {
    const Json id = entry.is_object() ? entry.value("id", Json()) : Json();
    if (!id.is_string() || !(name.empty() || id == name)) continue;
    const Json length = entry.value("max_model_len", Json());
    const int64_t tokens = length.is_number_integer() ? length.get<int64_t>() : 0;
    return {id.get<std::string>(), static_cast<int32_t>(std::clamp<int64_t>(tokens, 0, INT32_MAX))};
  }
  if (!name.empty()) return {.name = name};
  throw Error(fmt::format("{}/v1/models names no model ({}): give --model",
                          target.address.origin + target.address.path_prefix,
                          state_of(answer)));
}

SpeculationCounters parse_speculation_metrics(std::string_view text) {
  constexpr std::string_view kFamily = "vllm:spec_decode_num_";
  constexpr std::string_view kTotal = "_total";
  constexpr std::string_view kPosition = "position=\"";
  SpeculationCounters sums;
  while (!text.empty()) {  // "family{labels} value" or "family value"
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string_view name = line.substr(0, line.find_first_of("{ "));
    if (!name.starts_with(kFamily) || !name.ends_with(kTotal)) continue;
    std::string key(name.substr(kFamily.size(), name.size() - kFamily.size() - kTotal.size()));
    if (const size_t at = line.find(kPosition); at != std::string_view::npos) {
      const std::string_view rest = line.substr(at + kPosition.size());
      key += fmt::format(" {}", rest.substr(0, rest.find('"')));
    }
    const std::string_view number = line.substr(line.rfind(' ') + 1);
    double value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc())
      sums[key] += value;
  }
  return sums;
}

SpeculationCounters speculation_counters(const ServeTarget& target) {
  const HttpClient::Answer answer = ask(target, "/metrics");
  return answer.status == 200 ? parse_speculation_metrics(answer.body) : SpeculationCounters{};
}

std::vector<RequestRecord> run_requests(const ServeTarget& target,
                                        const std::vector<PlannedRequest>& requests,
                                        int32_t max_concurrency,
                                        const ProgressFunction& progress) {
  return Run(target, requests, max_concurrency, progress).go();
}

}  // namespace outrider
