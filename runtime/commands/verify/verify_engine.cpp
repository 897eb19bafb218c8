// See verify_engine.h.
#include "runtime/commands/verify/verify_engine.h"

#include <algorithm>
#include <deque>

#include "runtime/base/error.h"
#include "runtime/ranks/job/signals.h"

namespace outrider {
namespace {

constexpr auto kSignalInterval = std::chrono::milliseconds(200);

EngineAnswer collect(ResultStream& stream) {
  EngineAnswer answer;
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  while (true) {
    const auto event = stream.wait_next(kSignalInterval);
    if (wait_stop_signal(std::chrono::milliseconds(0))) throw Error("stopped by a signal");
    if (!event) continue;
    append(answer.tokens, event->tokens);
    append(answer.origins, event->origins);
    append(answer.logprobs, event->logprobs);
    append(answer.prompt_logprobs, event->prompt_logprobs);
    if (event->finish_reason == FinishReason::kNone) continue;
    answer.stats = event->stats;
    if (!event->error.empty()) throw Error(event->error);
    return answer;
  }
}

std::shared_ptr<ResultStream> submit(Engine& engine, Question question) {
  Request request;
  request.id = engine.next_request_id();
  request.prompt = std::move(question.prompt);
  request.params = std::move(question.params);
  request.stream = std::make_shared<ResultStream>();
  auto stream = request.stream;
  const AdmissionResult result = engine.submit(std::move(request));
  if (result.admission != Admission::kAccepted) throw Error(result.reason);
  return stream;
}

}  // namespace

void ask_engine(Engine& engine,
                size_t num_questions,
                size_t num_in_flight,
                const std::function<Question(size_t)>& question,
                const std::function<void(size_t, const EngineAnswer&)>& take) {
  std::deque<std::shared_ptr<ResultStream>> waiting;
  size_t num_asked = 0;
  for (size_t i = 0; i < num_questions; ++i) {
    while (num_asked < num_questions && waiting.size() < num_in_flight) {
      waiting.push_back(submit(engine, question(num_asked++)));
    }
    take(i, collect(*waiting.front()));
    waiting.pop_front();
  }
}

size_t requests_in_flight(const RunConfig& config) {
  return static_cast<size_t>(
      std::max(1, std::min(config.max_num_seqs * 3 / 2, config.max_num_queued_reqs)));
}

void DraftCounts::add(const EngineAnswer& answer) {
  num_bonus_drafts += answer.stats.num_bonus_drafts;
  for (TokenOrigin origin : answer.origins) {
    num_accepted += origin == TokenOrigin::kAccepted ? 1 : 0;
    num_examined += origin == TokenOrigin::kAccepted || origin == TokenOrigin::kCorrected ? 1 : 0;
  }
}

}  // namespace outrider
