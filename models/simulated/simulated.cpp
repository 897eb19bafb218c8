// See simulated.h.
#include "models/simulated/simulated.h"

#include <algorithm>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

class SystemStepClock final : public StepClock {
 public:
  int64_t now_ns() override { return JobClock::now_ns(); }
  void sleep_until_ns(int64_t time_ns) override {
    JobClock::sleep_until(JobClock::time_point(std::chrono::nanoseconds(time_ns)));
  }
};

constexpr int64_t kReadBytesPerNs = 8;
constexpr size_t kFloatsReadTogether = 1024;  // 4 KiB

void read_again(std::span<const float> values) {
  constexpr size_t kFloatsInLine = 16;
  for (size_t i = 0; i < values.size(); i += kFloatsInLine)
    static_cast<void>(*const_cast<const volatile float*>(&values[i]));
}

}  // namespace

StepClock& system_step_clock() {
  static SystemStepClock clock;
  return clock;
}

SimulatedModel::SimulatedModel(SimulatedSpec spec,
                               SimulatedRole role,
                               const ModelShard& shard,
                               const ModelOptions& options,
                               StepClock& clock)
    : Model(simulated_config(spec), shard, options),
      spec_(std::move(spec)),
      role_(role),
      law_{spec_.seed, spec_.workload_classes, spec_.repeat},
      clock_(clock) {}

void SimulatedModel::begin(const Batch& batch) {
  const int64_t begin_ns = clock_.now_ns();
  check_batch(batch);
  const auto width = static_cast<size_t>(shard_.vocab.size());
  for (const size_t index : said_) logits_[index] = kNeverSaid;
  said_.clear();
  if (logits_.size() < batch.logit_rows.size() * width)
    logits_.resize(batch.logit_rows.size() * width, kNeverSaid);
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const auto row = static_cast<size_t>(batch.logit_rows[i]);
    fill_row(batch.tokens[row], batch.positions[row], i);
  }
  const double cost_ms = jittered_ms(spec_, simulated_step_ms(spec_, batch), num_steps_++);
  end_ns_ = begin_ns + static_cast<int64_t>(cost_ms * 1e6);
  num_logits_ = batch.logit_rows.size() * width;
  const auto bytes = static_cast<int64_t>(num_logits_ * sizeof(float));
  reading_begin_ns_ = end_ns_ - std::min(bytes / kReadBytesPerNs, (end_ns_ - begin_ns) / 8);
}

std::optional<JobClock::time_point> SimulatedModel::advance() {
  if (JobClock::is_virtual_here()) clock_.sleep_until_ns(end_ns_);
  if (clock_.now_ns() >= reading_begin_ns_) return std::nullopt;
  return JobClock::time_point(std::chrono::nanoseconds(reading_begin_ns_));
}

// A model has written its logits when its step ends, so that they lie in the caches. Here they may
// have lain still for long, so they are read again.
std::span<const float> SimulatedModel::finish() {
  const std::span<const float> logits = std::span(logits_).first(num_logits_);
  if (!JobClock::is_virtual_here()) {
    clock_.sleep_until_ns(reading_begin_ns_);
    for (size_t i = 0; i < logits.size() && clock_.now_ns() < end_ns_; i += kFloatsReadTogether)
      read_again(logits.subspan(i, std::min(kFloatsReadTogether, logits.size() - i)));
  }
  clock_.sleep_until_ns(end_ns_);
  return logits;
}

void SimulatedModel::check_batch(const Batch& batch) const {
  const size_t num_rows = batch.tokens.size();
  OUTRIDER_CHECK(num_rows > 0 && num_rows <= static_cast<size_t>(options_.max_rows));
  OUTRIDER_CHECK(batch.positions.size() == num_rows && batch.sequence_of_row.size() == num_rows);
  OUTRIDER_CHECK(batch.logit_rows.size() <= static_cast<size_t>(options_.max_logit_rows));
  for (size_t i = 0; i < num_rows; ++i) {
    OUTRIDER_CHECK(batch.tokens[i] >= 0 && batch.tokens[i] < config_.vocab_size);
    OUTRIDER_CHECK(batch.positions[i] >= 0 && batch.positions[i] < config_.max_positions);
  }
  for (const int32_t row : batch.logit_rows)
    OUTRIDER_CHECK(row >= 0 && static_cast<size_t>(row) < num_rows);
}

void SimulatedModel::fill_row(int32_t token, int32_t position, size_t logit_row) {
  const SimulatedRow row = law_.row(token, position);
  SimulatedLogits logits;
  if (role_ == SimulatedRole::kTarget) {
    logits = target_logits(row);
  } else {
    const auto workload_class = static_cast<size_t>(law_.workload_class_of(token));
    logits = draft_logits(row, spec_.alpha[spec_.alpha.size() == 1 ? 0 : workload_class]);
  }
  for (size_t i = 0; i < row.kept.size(); ++i) put(logit_row, row.kept[i], logits.kept[i]);
  for (size_t i = 0; i < row.other.size(); ++i) put(logit_row, row.other[i], logits.other[i]);
}

void SimulatedModel::put(size_t logit_row, int32_t token, float logit) {
  if (token < shard_.vocab.begin || token >= shard_.vocab.end) return;
  const size_t index = logit_row * static_cast<size_t>(shard_.vocab.size()) +
                       static_cast<size_t>(token - shard_.vocab.begin);
  logits_[index] = logit;
  said_.push_back(index);
}

}  // namespace outrider
