// See loop.h.
#include "runtime/ranks/target/loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/trace.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/agreement.h"

namespace outrider {
namespace {

// While there is work a plan follows the round before it within microseconds: who slept meanwhile
// would begin its step later than the coordinator by what waking takes, and all wait for it.
class PlanWait {
 public:
  Bytes receive(World& world, int num_targets) {
    const auto begin = JobClock::now();
    const bool is_short = average_us_ < kShort.count();
    Bytes bytes = is_short ? receive_soon(world, 0, num_targets, kPolled)
                           : outrider::receive(world, 0, num_targets);
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

// The coordinator sends the proposals that came late shortly before a step ends, when it can tell.
// Who only waits for a device takes them in then: behind the step all would wait for that.
class AmendmentWait {
 public:
  AmendmentWait(World& world, int num_targets, TargetRank& target)
      : world_(world), num_targets_(num_targets), target_(target) {}
  ~AmendmentWait() { target_.set_meanwhile({}); }
  AmendmentWait(const AmendmentWait&) = delete;
  AmendmentWait& operator=(const AmendmentWait&) = delete;

  // Of the round that begins.
  void expect(RoundPlan& plan) {
    if (!plan.awaits_proposals) return target_.set_meanwhile({});
    target_.set_meanwhile([this, &plan, is_here = false](JobClock::time_point end) mutable {
      if (!is_here) is_here = listen_until(end, plan);
      JobClock::sleep_until(end);
    });
  }
  RoundAmendment take() { return decode_round_amendment(receive_soon(world_, 0, num_targets_)); }

 private:
  bool listen_until(JobClock::time_point end, RoundPlan& plan) {
    Backoff backoff(kNotHot);
    backoff.end_at(end);
    while (JobClock::now() < end) {
      if (const auto message = world_.poll(0)) {
        target_.amend(plan, decode_round_amendment(*message));
        return true;
      }
      world_.pause(backoff);
    }
    return false;
  }

  static constexpr std::chrono::microseconds kNotHot{0};
  World& world_;
  const int num_targets_;
  TargetRank& target_;
};

}  // namespace

void run_target_loop(World& world, const RankLayout& layout, TargetRank& target) {
  PlanWait plan_wait;
  AmendmentWait amendment(world, layout.num_targets, target);
  while (true) {
    RoundPlan plan = traced(TraceKind::kReceivePlan, [&] {
      return decode_round_plan(plan_wait.receive(world, layout.num_targets));
    });
    if (plan.shutdown) return;
    const TraceSpan span(TraceKind::kRound,
                         {static_cast<int64_t>(plan.round), std::ssize(plan.sequences)});
    amendment.expect(plan);
    const auto hear_candidates = [&] {
      if (plan.candidates_follow)
        decode_candidates(receive_soon(world, 0, layout.num_targets), plan);
    };
    const RoundDecision decision = target.execute(
        plan, [&] { return amendment.take(); }, hear_candidates);
    report_digest(world, plan.round, digest(plan.round, decision));
  }
}

}  // namespace outrider
