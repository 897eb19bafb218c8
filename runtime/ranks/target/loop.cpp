// See loop.h.
#include "runtime/ranks/target/loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/telemetry/trace.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/agreement.h"

namespace outrider {
namespace {

// While there is work a plan follows the round before it within microseconds: who slept meanwhile
// would begin its step later than the coordinator by what waking takes, and all wait for it.
class PlanWait {
 public:
  Bytes receive(World& world, const RankLayout& layout) {
    const auto begin = JobClock::now();
    const int parent = tree_parent(world.rank());
    const bool is_short = average_us_ < kShort.count();
    Bytes bytes = is_short ? receive_soon(world, parent, layout.num_targets, kPolled)
                           : outrider::receive(world, parent, layout.num_targets);
    post_down(world, layout, bytes);
    const auto waited_us =
        std::chrono::duration<double, std::micro>(JobClock::now() - begin).count();
    average_us_ += kWeight * (std::min(waited_us, kMostUs) - average_us_);
    return bytes;
  }

 private:
  // Between rounds of 64 sequences the coordinator takes some 400 us.
  static constexpr std::chrono::microseconds kShort{600};
  static constexpr std::chrono::microseconds kPolled{800};
  static constexpr double kMostUs = 2000;  // of an idle time: it is soon forgotten
  static constexpr double kWeight = 0.2;
  double average_us_ = 0;
};

// The coordinator sends the bonus draft tokens that came late shortly before a step ends, when it
// can tell. Who only waits for a device takes them in then: behind the step all would wait for
// that.
void listen_until(World& world,
                  const RankLayout& layout,
                  TargetRank& target,
                  JobClock::time_point end) {
  constexpr std::chrono::microseconds kNotHot{0};
  Backoff backoff(kNotHot);
  backoff.end_at(end);
  while (target.awaits_bonus_drafts() && JobClock::now() < end) {
    if (const auto message = world.poll(tree_parent(world.rank()))) {
      post_down(world, layout, *message);
      target.add_late_tokens(decode_late_draft_tokens(*message));
    } else {
      world.pause(backoff);
    }
  }
  JobClock::sleep_until(end);
}

// What belongs to a plan and follows it.
Bytes receive_more(World& world, const RankLayout& layout) {
  Bytes bytes = receive_soon(world, tree_parent(world.rank()), layout.num_targets);
  post_down(world, layout, bytes);
  return bytes;
}

RoundDecision follow(World& world, const RankLayout& layout, TargetRank& target, RoundPlan next) {
  if (next.num_probe_rows > 0) {
    target.probe(next.num_probe_rows);
    return {};
  }
  target.begin(std::move(next));
  if (target.plan().candidates_follow) target.add_candidates(receive_more(world, layout));
  target.prepare();
  while (const auto until = target.advance()) listen_until(world, layout, target, *until);
  if (target.awaits_bonus_drafts()) {
    const TraceSpan span(TraceKind::kBonusDrafts);
    target.add_late_tokens(decode_late_draft_tokens(receive_more(world, layout)));
  }
  return target.finish();
}

}  // namespace

void run_target_loop(World& world, const RankLayout& layout, TargetRank& target) {
  PlanWait plan_wait;
  while (true) {
    RoundPlan plan = traced(TraceKind::kReceivePlan,
                            [&] { return decode_round_plan(plan_wait.receive(world, layout)); });
    if (plan.shutdown) return;
    const uint64_t round = plan.round;
    world.note_round(round);
    const TraceSpan span(TraceKind::kRound,
                         {static_cast<int64_t>(round), std::ssize(plan.sequences)});
    const RoundDecision decision = follow(world, layout, target, std::move(plan));
    report_digest(world, layout, round, digest(round, decision));
  }
}

}  // namespace outrider
