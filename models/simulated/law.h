// The pseudo-language of simulated models. What follows a token depends on the token, its position
// and the seed alone, so every rank and both models know it without computing anything.
//
// After a row the target says one of 4 "kept" words, all but equally likely (the first is e^kTilt
// times as likely as the others). A draft of acceptance alpha says a kept word with probability
// alpha and one of 12 "other" words, which the target never says there, with 1 - alpha. So at
// temperature 1 and without filters
//   sum over tokens of min(target_prob, draft_prob) = alpha
// in every row, which is what the standard and block rules accept; and from alpha 0.3 on, where the
// draft keeps the kept words' proportions, coupled draws agree with probability alpha, too
// (exactly, but for the tilt). At temperature 0 they agree in a share alpha of the rows, by a coin
// that the row's hash throws: the draft's tilt then lies on the target's favourite, else on another
// word. All 16 words of a draft fit its num_draft_candidates; with fewer of them alpha is another.
//
// A text repeats itself: at a share `repeat` of the positions the row is that of kRepeatPeriod
// positions before, whatever the token. So at temperature 0 a drafter that looks the text up is
// right in that share of the rows where it finds something.
//
// Words are the embedded tokenizer's, beyond its special and byte tokens. Word i is of
// workload_class i % workload_classes, and what follows a word is of its workload_class: a request
// stays in that of its prompt's last token, so one job can have requests of different acceptance
// and costs.
#pragma once

#include <array>
#include <cstdint>

namespace outrider {

inline constexpr int32_t kFirstSimulatedWord = 270;
inline constexpr int32_t kEndSimulatedWords = 3072;
inline constexpr int32_t kMaxWorkloadClasses = 64;
inline constexpr int32_t kRepeatPeriod = 16;
inline constexpr float kSimulatedTilt = 1.0f / 256;
inline constexpr float kNeverSaid = -100.0f;  // finite, and no weight at all in fixed point

struct SimulatedRow {
  std::array<int32_t, 4> kept;
  std::array<int32_t, 12> other;
  double coin = 0;  // uniform in [0, 1)
};

struct SimulatedLaw {
  uint64_t seed = 1;
  int32_t workload_classes = 1;
  double repeat = 0;

  int32_t workload_class_of(int32_t token) const {
    return token < kFirstSimulatedWord ? 0 : (token - kFirstSimulatedWord) % workload_classes;
  }
  SimulatedRow row(int32_t token, int32_t position) const;
};

// Logits of a row's words; of all other tokens it is kNeverSaid.
struct SimulatedLogits {
  std::array<float, 4> kept;
  std::array<float, 12> other;
};
SimulatedLogits target_logits(const SimulatedRow& row);
SimulatedLogits draft_logits(const SimulatedRow& row, double alpha);

}  // namespace outrider
