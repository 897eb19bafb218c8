// A model that computes nothing: it makes up logits (models/simulated/law.h), and a step takes the
// time that its spec says (models/simulated/spec.h), asleep. All the rest of a job, messages,
// scheduler, verification and HTTP, is as with any model.
#pragma once

#include <cstdint>
#include <vector>

#include "models/forward/model.h"
#include "models/simulated/law.h"
#include "models/simulated/spec.h"

namespace outrider {

// Time as a simulated step knows it; a test brings its own.
class StepClock {
 public:
  virtual ~StepClock() = default;
  virtual int64_t now_ns() = 0;
  virtual void sleep_until_ns(int64_t time_ns) = 0;
};

// The job's clock (runtime/base/clock.h).
StepClock& system_step_clock();

enum class SimulatedRole : uint8_t { kTarget, kDraft };

class SimulatedModel final : public Model {
 public:
  // clock must outlive this.
  SimulatedModel(SimulatedSpec spec,
                 SimulatedRole role,
                 const ModelShard& shard,
                 const ModelOptions& options,
                 StepClock& clock = system_step_clock());

  // Not a collective: each rank sleeps by itself, equally long. In virtual time the step is this
  // thread's own work, else a device's.
  void begin(const Batch& batch) override;
  std::optional<JobClock::time_point> advance() override;
  std::span<const float> finish() override;
  void clear_blocks(std::span<const int32_t>) override {}  // there is no KV
  void copy_block(int32_t, int32_t) override {}

 private:
  void check_batch(const Batch& batch) const;
  void fill_row(int32_t token, int32_t position, size_t logit_row);
  void put(size_t logit_row, int32_t token, float logit);

  const SimulatedSpec spec_;
  const SimulatedRole role_;
  const SimulatedLaw law_;
  StepClock& clock_;
  uint64_t num_steps_ = 0;
  // Of the step that has begun.
  int64_t reading_begin_ns_ = 0;
  int64_t end_ns_ = 0;
  size_t num_logits_ = 0;
  std::vector<float> logits_;  // [rows so far, vocab of the shard]; kNeverSaid but for `said_`
  std::vector<size_t> said_;   // indices of the last step's words
};

}  // namespace outrider
