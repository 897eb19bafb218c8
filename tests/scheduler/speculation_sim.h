// A job in virtual time for tests of the planner of speculation: sequences whose draft tokens are
// accepted by coin, a target and a draft with given step times, and the rounds that the planner
// asks for. The unit of time is a plain step of one sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "scheduler/pacing/speculation.h"

namespace outrider {

struct SimulatedJob {
  enum class Mode { kOff, kChain, kCache };
  Mode mode = Mode::kOff;
  int32_t num_sequences = 1;
  double draft_step = 0.1;               // one token of all sequences
  std::function<double()> draft_slower;  // times this, as things are
  std::function<double()> link;          // what the first token that is waited for takes beside
  std::function<double(int32_t)> step = [](int32_t) { return 1.0; };  // by rows
  double slower_beside_draft = 1;   // steps with the draft at work
  double slower_beside_target = 1;  // the draft's steps while the target's run
  std::function<double(int64_t)> alpha = [](int64_t) { return 0.8; };  // by tokens so far
  double hit_rate = 0.8;  // cache: of the prepared outcomes
  bool probes = true;     // on a quiet machine
  // What other work on the machine makes of a round's times: a factor, by rounds so far.
  std::function<double(int64_t, std::mt19937&)> disturbance;
};

struct SimulatedRun {
  double seconds = 0;
  double num_tokens = 0;
  double num_waits = 0;
  double num_drafted = 0;
  double num_rounds = 0;
  double num_idle_rounds = 0;  // with an idle draft
  double plain_s = 0;          // of as many rounds with an idle draft, as disturbed
  double speed() const { return num_tokens / seconds; }
  double mean_draft_len() const { return num_drafted / num_rounds; }
};

class SpeculationSim {
 public:
  explicit SpeculationSim(const SimulatedJob& job, uint32_t seed = 1);

  SimulatedRun run(int64_t num_rounds);
  // From now on so many sequences: the first ones, or further ones that begin.
  void resize(int32_t num_sequences);

 private:
  struct State {
    double chain = 0;  // draft tokens behind the committed text, with the part of the next one
    double waited_s = 0;
  };
  double draft_step() const {
    return job_.draft_step * (job_.draft_slower ? job_.draft_slower() : 1);
  }
  RoundState state(bool may_wait) const;
  RoundChoice settle(SimulatedRun* run);
  void draw_tokens(bool first);
  double go(const RoundChoice& choice, double waited_s);
  int32_t verify(size_t i, int32_t draft_len, double step_s, bool works);
  bool coin(double chance) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < chance;
  }

  SimulatedJob job_;
  Speculation planner_;
  std::mt19937 random_;
  std::vector<State> states_;
  int64_t num_tokens_ = 0;
  int64_t num_rounds_ = 0;
  double slower_ = 1;  // this round, by the disturbance
};

}  // namespace outrider
