// ask_engine() and what goes with it of verify_pair.h.
#include <algorithm>
#include <deque>

#include "runtime/commands/verify/verify_pair.h"

namespace outrider {

void ask_engine(const FrontEndContext& context,
                size_t num_questions,
                size_t num_in_flight,
                const std::function<Request(size_t)>& question,
                const std::function<void(size_t, const BenchAnswer&)>& take) {
  std::deque<std::shared_ptr<ResultStream>> waiting;
  size_t num_asked = 0;
  for (size_t i = 0; i < num_questions; ++i) {
    while (num_asked < num_questions && waiting.size() < num_in_flight) {
      Request request = question(num_asked++);
      request.id = context.engine.next_request_id();
      waiting.push_back(submit_bench_request(context, std::move(request)));
    }
    take(i, collect_bench_answer(*waiting.front()));
    waiting.pop_front();
  }
}

size_t requests_in_flight(const RunConfig& config) {
  return static_cast<size_t>(
      std::max(1, std::min(config.max_num_seqs * 3 / 2, config.max_num_queued_reqs)));
}

void add_drafts(const BenchAnswer& answer, DraftCounts* counts) {
  counts->num_bonus_drafts += answer.stats.num_bonus_drafts;
  for (TokenOrigin origin : answer.origins) {
    const bool is_accepted = origin == TokenOrigin::kAccepted;
    counts->num_accepted += is_accepted ? 1 : 0;
    counts->num_examined += is_accepted || origin == TokenOrigin::kCorrected ? 1 : 0;
  }
}

}  // namespace outrider
