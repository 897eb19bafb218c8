// See bench_requests.h.
#include "runtime/commands/bench/bench_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/commands/bench/prompt_files.h"
#include "runtime/ranks/job/signals.h"

namespace outrider {
namespace {

using Clock = JobClock;

constexpr const char* kOwnPrompts[] = {
    "Once upon a time there was a king who had three sons.",
    "It was late in the evening when the stranger knocked at the door.",
    "The old woman went into the forest to gather wood, and",
    "My dear Watson, said Holmes, you see but you do not observe.",
    "The prince looked at the letter for a long time and said nothing.",
    "There was once a poor miller who had a beautiful daughter.",
    "The soldiers had been marching since the morning, and",
    "In the garden stood a tree that bore golden apples.",
};
constexpr auto kSignalInterval = std::chrono::milliseconds(200);

// What this event's round did, from the counters before and after it.
void record_round(const SpeculationStats& stats, BenchAnswer* answer) {
  const BenchRound round = {stats.num_draft_tokens - answer->stats.num_draft_tokens,
                            stats.num_accepted_tokens - answer->stats.num_accepted_tokens};
  if (round.draft_len > 0) answer->rounds.push_back(round);
  answer->stats = stats;
}

}  // namespace

std::vector<std::string> read_bench_prompts(const std::string& file_name, int32_t num_prompts) {
  std::vector<std::string> prompts;
  if (file_name.empty()) {
    prompts.assign(std::begin(kOwnPrompts), std::end(kOwnPrompts));
  } else {
    const std::string text = read_text_file(file_name, kMaxPromptFileBytes);
    for (RequestShape& line : parse_prompt_lines(text, file_name))
      prompts.push_back(std::move(line.text));
  }
  if (static_cast<int32_t>(prompts.size()) > num_prompts) {
    prompts.resize(static_cast<size_t>(num_prompts));
  }
  return prompts;
}

Request bench_request(const FrontEndContext& context,
                      const std::string& prompt,
                      int32_t max_tokens) {
  Request request;
  request.id = context.engine.next_request_id();
  request.prompt = context.tokenizer->encode(prompt);
  const auto room = context.engine.info().max_model_len - max_tokens;
  if (room < 1) throw Error(fmt::format("max_tokens {} leaves no room for a prompt", max_tokens));
  if (static_cast<int32_t>(request.prompt.size()) > room)
    request.prompt.resize(static_cast<size_t>(room));
  request.params.max_tokens = max_tokens;
  return request;
}

std::shared_ptr<ResultStream> submit_bench_request(const FrontEndContext& context,
                                                   Request request) {
  auto stream = std::make_shared<ResultStream>();
  request.stream = stream;
  const AdmissionResult result = context.engine.submit(std::move(request));
  if (result.admission != Admission::kAccepted) throw Error(result.reason);
  return stream;
}

BenchAnswer collect_bench_answer(ResultStream& stream) {
  BenchAnswer answer;
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  const auto begin = Clock::now();
  std::optional<Clock::time_point> first;
  while (true) {
    auto event = stream.wait_next(kSignalInterval);
    if (wait_stop_signal(std::chrono::milliseconds(0))) throw Error("stopped by a signal");
    if (!event) continue;
    const auto now = Clock::now();
    if (first) answer.num_decoded += static_cast<int>(event->tokens.size());
    if (!first && !event->tokens.empty()) first = now;
    append(answer.tokens, event->tokens);
    append(answer.origins, event->origins);
    append(answer.logprobs, event->logprobs);
    append(answer.prompt_logprobs, event->prompt_logprobs);
    record_round(event->stats, &answer);
    if (event->finish_reason == FinishReason::kNone) continue;
    if (!event->error.empty()) throw Error(event->error);
    if (first) answer.ttft_s = std::chrono::duration<double>(*first - begin).count();
    if (first) answer.decode_s = std::chrono::duration<double>(now - *first).count();
    return answer;
  }
}

BenchLoad run_bench_requests(const FrontEndContext& context,
                             std::vector<Request> requests,
                             int32_t concurrency) {
  BenchLoad load;
  load.answers.resize(requests.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr problem;
  const auto work = [&] {
    for (size_t i = next++; i < requests.size(); i = next++) {
      try {
        const auto num_prompt_tokens = static_cast<int>(requests[i].prompt.size());
        const auto stream = submit_bench_request(context, std::move(requests[i]));
        load.answers[i] = collect_bench_answer(*stream);
        load.answers[i].num_prompt_tokens = num_prompt_tokens;
      } catch (...) {
        next = requests.size();
        std::lock_guard lock(mutex);
        if (!problem) problem = std::current_exception();
      }
    }
  };
  const size_t most = concurrency == 0 ? requests.size() : static_cast<size_t>(concurrency);
  const auto begin = Clock::now();
  {
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < std::min(most, requests.size()); ++i) helpers.emplace_back(work);
    work();
  }
  load.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
  if (problem) std::rethrow_exception(problem);
  return load;
}

}  // namespace outrider
