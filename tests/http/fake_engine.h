// An engine that answers from a script: what tokens, how many an event, with what pauses, how it
// ends. Each request runs on a thread of its own, as its events would come from the round's thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "models/text/tokenizer.h"
#include "scheduler/engine.h"

namespace outrider::testing {

struct Script {
  std::vector<int32_t> tokens;
  size_t tokens_per_event = 3;
  std::chrono::milliseconds pause{0};  // before each event
  FinishReason end = FinishReason::kStop;
  std::optional<int32_t> stop_token;
  std::string error;
  bool is_request_fault = false;
  bool endless = false;  // the tokens again and again up to max_tokens or until cancelled
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(int32_t vocab_size) {
    info_.served_model_name = "test-model";
    info_.model_root = "test-model-root";
    info_.max_model_len = 512;
    info_.vocab_size = vocab_size;
    info_.draft = "draft";
    info_.num_speculative_tokens = 4;
  }
  ~FakeEngine() override {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  // Chosen for each request as it is submitted.
  std::function<Script(const Request&)> script;
  std::atomic<size_t> capacity{1'000'000};  // requests at once; more are kQueueFull
  // With so many a request goes on only when this is raised: what is between two events can be
  // looked at for as long as it takes.
  std::atomic<int32_t> most_tokens{INT32_MAX};
  std::atomic<int> num_refused{0};
  std::atomic<bool> ready{true};
  std::atomic<double> round_age_s{0.0};

  const EngineInfo& info() const override { return info_; }
  EngineInfo& mutable_info() { return info_; }
  uint64_t next_request_id() override { return ++last_id_; }

  AdmissionResult submit(Request request) override {
    std::lock_guard lock(mutex_);
    if (num_running_ >= capacity) {
      ++num_refused;
      return {Admission::kQueueFull, "the queue is full"};
    }
    ++num_running_;
    cancelled_[request.id] = false;
    submitted_.push_back(request);
    threads_.emplace_back([this, request, plan = script(request)] { run(request, plan); });
    return {};
  }
  void cancel(uint64_t id) override {
    std::lock_guard lock(mutex_);
    cancelled_[id] = true;
    ++num_cancelled_;
  }
  EngineStatus status() const override {
    EngineStatus status;
    status.ready = ready;
    status.num_running = static_cast<int32_t>(num_running_.load());
    status.last_round_age_s = round_age_s;
    return status;
  }

  size_t num_running() const { return num_running_; }
  size_t num_cancelled() const {
    std::lock_guard lock(mutex_);
    return num_cancelled_;
  }
  std::vector<Request> submitted() const {
    std::lock_guard lock(mutex_);
    return submitted_;
  }

 private:
  bool is_cancelled(uint64_t id) {
    std::lock_guard lock(mutex_);
    return cancelled_[id] || stopping_;
  }

  static TokenLogprobs logprobs_of(int32_t token, const SamplingParams& params) {
    TokenLogprobs out{.logprob = -0.5f, .rank = 1, .top = {}};
    for (int32_t i = 0; i < params.num_logprobs; ++i) {
      out.top.emplace_back((token + i) % 256, -0.5f - static_cast<float>(i));
    }
    return out;
  }

  void run(const Request& request, const Script& plan) {
    size_t next = 0;
    int32_t made = 0;
    const auto scheduled_at = JobClock::now();
    ResultEvent event;
    if (request.params.prompt_logprobs) {
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        event.prompt_logprobs.push_back(logprobs_of(request.prompt[i], request.params));
      }
    }
    while (event.finish_reason == FinishReason::kNone) {
      std::this_thread::sleep_for(plan.pause);
      while (made >= most_tokens && !is_cancelled(request.id))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      fill(request, plan, &next, &made, &event);
      if (is_cancelled(request.id)) event.finish_reason = FinishReason::kAborted;
      const bool last = event.finish_reason != FinishReason::kNone;
      event.scheduled_at = scheduled_at;
      event.decided_at = JobClock::now();
      if (last) --num_running_;
      request.stream->push(event);
      if (last) break;
      event = ResultEvent{.stats = event.stats};
    }
  }

  // A round of `tokens_per_event` tokens: all accepted but the last, which is a bonus or a
  // correction.
  static void fill(
      const Request& request, const Script& plan, size_t* next, int32_t* made, ResultEvent* event) {
    for (size_t i = 0; i < plan.tokens_per_event; ++i) {
      if (*next == plan.tokens.size() && plan.endless) *next = 0;
      if (*next == plan.tokens.size()) {
        event->finish_reason = plan.end;
        event->error = plan.error;
        event->is_request_fault = plan.is_request_fault;
        event->stop_token = plan.stop_token;
        if (plan.stop_token && request.params.num_logprobs >= 0) {
          event->stop_token_logprobs = logprobs_of(*plan.stop_token, request.params);
        }
        return;
      }
      const int32_t token = plan.tokens[(*next)++];
      event->tokens.push_back(token);
      const bool last = i + 1 == plan.tokens_per_event;
      event->origins.push_back(last ? TokenOrigin::kCorrected : TokenOrigin::kAccepted);
      if (request.params.num_logprobs >= 0) {
        event->logprobs.push_back(logprobs_of(token, request.params));
      }
      if (++*made == request.params.max_tokens) {
        event->finish_reason = FinishReason::kLength;
        return;
      }
    }
    SpeculationStats& stats = event->stats;
    const auto accepted = std::min(static_cast<int32_t>(plan.tokens_per_event) - 1, 4);
    ++stats.num_rounds;
    ++stats.num_spec_rounds;
    stats.num_draft_tokens += 4;
    stats.num_accepted_tokens += accepted;
    stats.accepted_per_position.resize(4);
    for (int32_t i = 0; i < accepted; ++i) ++stats.accepted_per_position[static_cast<size_t>(i)];
  }

  EngineInfo info_;
  mutable std::mutex mutex_;
  std::map<uint64_t, bool> cancelled_;
  std::vector<Request> submitted_;
  std::vector<std::thread> threads_;
  size_t num_cancelled_ = 0;
  std::atomic<size_t> num_running_{0};
  std::atomic<uint64_t> last_id_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace outrider::testing
