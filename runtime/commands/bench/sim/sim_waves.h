// Waves of requests through the running job, all of one workload_class and one way of drafting, and
// what they show. Front end of rank 0; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/commands/bench/sim/sim_grid.h"
#include "runtime/ranks/job/job.h"

namespace outrider {

inline constexpr int32_t kPlannedDraftLen = -1;
// What a round gives hangs on the one before (a draft that was ready or not), but hardly on one so
// many earlier.
inline constexpr int64_t kGroupRounds = 10;

struct SimWaveSpec {
  int32_t workload_class = 0;
  int32_t draft_len = 0;  // 0 = no drafts, kPlannedDraftLen = the planner's choice, else fixed
  AsyncDrafting async_drafting = AsyncDrafting::kOff;
  std::vector<int32_t> max_tokens;  // of each request
  int32_t num_requests() const { return static_cast<int32_t>(max_tokens.size()); }
};

// Neighbouring rounds in which all requests of a wave ran.
struct RoundGroup {
  double seconds = 0;
  double waited_s = 0;  // of these: the targets for the draft
  double num_tokens = 0;
};

struct SimWave {
  double seconds = 0;      // from the first event of the first request to the last event of all
  int64_t num_tokens = 0;  // in that time
  // The same of the time in which all requests of the wave ran at once.
  double full_seconds = 0;
  int64_t num_full_tokens = 0;
  int64_t num_full_rounds = 0;
  std::vector<RoundGroup> groups;   // of that time, each of kGroupRounds rounds but maybe the last
  std::vector<double> overhead_us;  // of a single request's rounds: all but the models' steps
  int64_t num_rounds = 0;           // of the first request
  int64_t num_round_tokens = 0;
  int64_t examined = 0;
  int64_t accepted = 0;
  double bubble_s = 0;  // the targets waited for the draft
  // Of the rounds in which all requests ran: all of a round but its target step and its wait for
  // the draft.
  std::vector<double> round_overheads_us;
  double num_lookups = 0;
  double num_hits = 0;
  double tokens_per_s() const {
    return seconds > 0 ? static_cast<double>(num_tokens) / seconds : 0;
  }
  double full_tokens_per_s() const {
    return full_seconds > 0 ? static_cast<double>(num_full_tokens) / full_seconds : 0;
  }
};

class SimRunner {
 public:
  SimRunner(const FrontEndContext& context, const SimGrid& grid, double temperature, uint64_t seed)
      : context_(context), grid_(grid), temperature_(temperature), seed_(seed) {}

  // Throws Error when a request fails or a signal wants us to stop.
  SimWave run(const SimWaveSpec& spec);

 private:
  using Clock = JobClock;

  void record_samples(const SimWaveSpec& spec, SimWave* wave);
  double step_s(int32_t workload_class, int32_t num_rows) const;
  std::shared_ptr<ResultStream> ask(const SimWaveSpec& spec, int32_t index);
  Clock::time_point follow(ResultStream& stream, const SimWaveSpec& spec, SimWave* wave);
  void record_round(const SimWaveSpec& spec,
                    int32_t draft_len,
                    int32_t position,
                    double round_ms,
                    SimWave* wave) const;

  const FrontEndContext& context_;
  const SimGrid& grid_;
  const double temperature_;
  const uint64_t seed_;  // of the noise
};

// How late the system wakes a sleeper on this machine now: part of every simulated step.
std::vector<double> sleep_overshoot_us();

}  // namespace outrider
