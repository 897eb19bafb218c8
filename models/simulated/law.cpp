// See law.h.
#include "models/simulated/law.h"

#include <algorithm>

#include "runtime/base/numbers/exact_math.h"
#include "runtime/base/numbers/rng.h"

namespace outrider {
namespace {

// From here on the draft keeps the kept words' proportions; below, words that the target never says
// would be likelier than each of the four.
constexpr double kLeastProportional = 0.3;

float log_of(double weight) {
  return weight > 0 ? static_cast<float>(exact_log(weight)) : kNeverSaid;
}

double uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace

SimulatedRow SimulatedLaw::row(int32_t token, int32_t position) const {
  const auto key_of = [&](int32_t of_token, int32_t of_position) {
    return mix_seed(mix_seed(seed, static_cast<uint64_t>(of_token)),
                    static_cast<uint64_t>(of_position) + (uint64_t{1} << 32));
  };
  const uint64_t own_key = key_of(token, position);
  const bool repeats = repeat > 0 && uniform(key_of(-1, position)) < repeat;
  const uint64_t key = repeats ? key_of(-2, position % kRepeatPeriod) : own_key;
  const int32_t workload_class = workload_class_of(token);
  const int32_t num_words =
      (kEndSimulatedWords - kFirstSimulatedWord - 1 - workload_class) / workload_classes + 1;
  std::array<int32_t, 16> words{};
  uint64_t draw = 0;
  for (size_t i = 0; i < words.size();) {
    const auto word =
        static_cast<int32_t>(mix_seed(key, draw++) % static_cast<uint64_t>(num_words));
    const int32_t id = kFirstSimulatedWord + workload_class + word * workload_classes;
    const auto end = words.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(words.begin(), end, id) == end) words[i++] = id;
  }
  SimulatedRow row;
  std::copy_n(words.begin(), row.kept.size(), row.kept.begin());
  std::copy_n(words.begin() + row.kept.size(), row.other.size(), row.other.begin());
  row.coin = uniform(mix_seed(~own_key, 0));
  return row;
}

SimulatedLogits target_logits(const SimulatedRow&) {
  SimulatedLogits logits;
  logits.kept = {kSimulatedTilt, 0, 0, 0};
  logits.other.fill(kNeverSaid);
  return logits;
}

SimulatedLogits draft_logits(const SimulatedRow& row, double alpha) {
  if (alpha >= 1) return target_logits(row);
  const double tilt = exact_exp(kSimulatedTilt);
  const double sum = tilt + 3;  // of the kept words' weights
  const bool agrees = row.coin < alpha;
  SimulatedLogits logits;
  if (agrees && alpha < kLeastProportional) {
    // As much as the target gives it on its favourite, the rest of alpha on the other three.
    const double favourite = std::min(alpha, tilt / sum);
    logits.kept.fill(log_of((alpha - favourite) / 3));
    logits.kept[0] = log_of(favourite);
    logits.other.fill(log_of((1 - alpha) / 12));
    return logits;
  }
  if (alpha <= 0) {
    logits.kept.fill(kNeverSaid);
    logits.other.fill(0);
    return logits;
  }
  logits.kept.fill(0);
  logits.kept[agrees ? 0 : 1] = kSimulatedTilt;
  logits.other.fill(log_of((1 - alpha) / alpha * sum / 12));
  return logits;
}

}  // namespace outrider
