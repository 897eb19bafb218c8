// See speculation_sim.h.
#include "tests/scheduler/speculation_sim.h"

#include <algorithm>
#include <cmath>

namespace outrider {

SpeculationSim::SpeculationSim(const SimulatedJob& job, uint32_t seed)
    : job_(job),
      planner_({.has_worker = true, .drafts_async = job.mode != SimulatedJob::Mode::kOff}),
      random_(seed),
      states_(static_cast<size_t>(job.num_sequences)) {
  if (!job.probes) return;
  for (int32_t rows : {1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 512}) {
    for (int i = 0; i < 2; ++i) planner_.record_probe({.num_rows = rows}, job_.step(rows));
  }
}

RoundState SpeculationSim::state(bool may_wait) const {
  RoundState state;
  state.may_wait = may_wait;
  state.max_rows = 512;
  for (size_t i = 0; i < states_.size(); ++i) {
    state.sequences.push_back({.sequence_id = i + 1,
                               .num_context = 100,
                               .limit = 64,
                               .num_at_hand = static_cast<int32_t>(states_[i].chain + 1e-9),
                               .more_coming = true,
                               .waited_s = states_[i].waited_s});
  }
  return state;
}

// Waits as long as the planner says, token by token, and then for what it goes with.
RoundChoice SpeculationSim::settle(SimulatedRun* run) {
  slower_ = job_.disturbance ? job_.disturbance(num_rounds_++, random_) : 1;
  RoundChoice choice = planner_.choose(state(true));
  // Time goes on in quarters of a draft token, or smaller parts of a slow one's; the planner is
  // asked again each time.
  const auto num_ticks = std::max<int64_t>(4, std::llround(8 * draft_step()));
  const double tick_s = slower_ * draft_step() / static_cast<double>(num_ticks);
  int64_t ticks = 0;
  while (choice.wait) {
    if (ticks++ == 0) ++run->num_waits;
    for (State& state : states_) state.waited_s += tick_s;
    if (ticks % num_ticks == 0) draw_tokens(ticks == num_ticks);
    choice = planner_.choose(state(true));
  }
  const double waited_s = static_cast<double>(ticks) * tick_s;
  run->seconds += go(choice, waited_s) + waited_s;
  return choice;
}

void SpeculationSim::draw_tokens(bool first) {
  const double seconds = slower_ * draft_step();
  planner_.record_draft_work(1, static_cast<uint32_t>(states_.size()), seconds, true);
  const double link_s = job_.link ? job_.link() : 0;
  if (first) planner_.record_first_tokens(seconds + link_s, job_.num_sequences, 1);
  for (State& state : states_) {
    state.chain = std::floor(state.chain + 1e-9) + 1;
    state.waited_s = 0;
  }
}

double SpeculationSim::go(const RoundChoice& choice, double waited_s) {
  RoundRecord round;
  round.num_sequences = job_.num_sequences;
  round.waited_s = waited_s;
  round.draft_worked = choice.draft_works;
  round.load.num_rows = job_.num_sequences;
  for (const SequenceChoice& one : choice.sequences) round.load.num_rows += one.draft_len;
  round.step_s = job_.step(round.load.num_rows);
  if (choice.draft_works) round.step_s *= job_.slower_beside_draft;
  const double quiet_s = round.step_s;
  round.step_s *= slower_;
  const int64_t before = num_tokens_;
  for (size_t i = 0; i < states_.size(); ++i) {
    num_tokens_ += verify(i, choice.sequences[i].draft_len, quiet_s, choice.draft_works) + 1;
  }
  const double draft_s = job_.slower_beside_target * draft_step();
  const bool starves = job_.slower_beside_target > 1;  // and is heard of in the end
  if (choice.draft_works && (starves ? waited_s == 0 : draft_s <= quiet_s)) {
    const auto num_rows = static_cast<uint32_t>(states_.size());
    planner_.record_draft_work(1, num_rows, slower_ * draft_s, false);
  }
  round.num_tokens = static_cast<int32_t>(num_tokens_ - before);
  round.total_s = round.step_s + waited_s;
  planner_.record_round(round);
  return round.step_s;
}

int32_t SpeculationSim::verify(size_t i, int32_t draft_len, double step_s, bool works) {
  using Mode = SimulatedJob::Mode;
  State& state = states_[i];
  const double alpha = job_.alpha(num_tokens_);
  int32_t accepted = 0;
  while (accepted < draft_len && coin(alpha)) ++accepted;
  const bool all_stand = accepted == draft_len;
  // Behind what is verified; off: the draft was told to go on only where nothing is verified.
  const double behind = state.chain - draft_len + (works ? step_s / draft_step() : 0);
  const bool proposes = works && behind >= 1 - 1e-9 && (job_.mode != Mode::kOff || draft_len == 0);
  const bool bonus_accepted = proposes && all_stand && coin(alpha);
  const bool judges = proposes && all_stand;
  const int32_t num_judged = draft_len + (judges ? 1 : 0);
  if (num_judged > 0)
    planner_.record_result(i + 1, num_judged, accepted + (bonus_accepted ? 1 : 0));
  state.waited_s = 0;
  bool hit = false;
  if (job_.mode == Mode::kChain) hit = bonus_accepted;
  if (job_.mode == Mode::kCache) hit = works && step_s >= draft_step() && coin(job_.hit_rate);
  const double most = job_.mode == Mode::kChain ? std::min(behind - 1, 16.0)
                                                : std::min(step_s / draft_step(), 16.0);
  state.chain = hit ? std::floor(most + 1e-9) : 0;
  if (works && job_.mode != Mode::kOff)
    planner_.record_lookup(all_stand, hit, static_cast<int32_t>(state.chain));
  return accepted;
}

void SpeculationSim::resize(int32_t num_sequences) {
  job_.num_sequences = num_sequences;
  states_.resize(static_cast<size_t>(num_sequences));
}

SimulatedRun SpeculationSim::run(int64_t num_rounds) {
  SimulatedRun run;
  const int64_t before = num_tokens_;
  for (int64_t round = 0; round < num_rounds; ++round) {
    const RoundChoice choice = settle(&run);
    run.num_idle_rounds += choice.draft_works ? 0 : 1;
    run.plain_s += slower_ * job_.step(job_.num_sequences);
    for (const SequenceChoice& one : choice.sequences) run.num_drafted += one.draft_len;
  }
  run.num_rounds = static_cast<double>(num_rounds * job_.num_sequences);
  run.num_tokens = static_cast<double>(num_tokens_ - before);
  return run;
}

}  // namespace outrider
