// For which outcomes of the rounds in flight the draft prepares blocks: the likeliest (number
// accepted, token after it) of all sequences together, as many as there are rows for. Where the
// chances of the guesses fall off as 1 / rank^(1 + r) this is the fan-out F_k ~ alpha^(k / (1 + r))
// of Saguaro (section 4.1 of its paper: the geometric fan-out that maximises the hit rate). Plain
// values, called by the draft worker; what it chooses changes only what is at hand when a round is
// decided, never a token.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/drafting/propose.h"

namespace outrider {

// Guesses of a row by rank. After the whole block rank 0 is the token drafted next and the others
// follow; after fewer tokens the drafted one has fallen, and rank 0 is the best of the others.
inline constexpr int32_t kNumRanks = kMaxGuesses + 1;

// How often the token that came was the guess of a rank: counts that forget.
class RankChances {
 public:
  RankChances();
  // rank -1: none of the guesses.
  void note(int32_t rank);
  double at(int32_t rank) const;

 private:
  std::array<double, kNumRanks> counts_{};
  double num_noted_;
};

// A sequence whose round is in flight.
struct OutcomeOdds {
  int32_t num_in_flight = 0;  // draft tokens being verified
  double acceptance = 0;
  const RankChances* after_some = nullptr;  // by rank, when fewer than all of them stand
  const RankChances* after_all = nullptr;
  // How many guesses there are after 0, 1, .. num_in_flight tokens; where nothing is said, all
  // ranks may be asked for.
  std::vector<int32_t> num_guesses;
};

struct Outcome {
  int32_t sequence = 0;  // index
  int32_t num_accepted = 0;
  int32_t rank = 0;
  double chance = 0;
  bool operator==(const Outcome&) const = default;
};

// The likeliest outcomes, at most max_outcomes in all and max_per_sequence of each sequence, in
// descending chance; of equal ones the earlier sequence, the fewer accepted and the lower rank
// first. Chances: a^k (1 - a) for k < L accepted, a^L for all of them, times the guess's.
std::vector<Outcome> fan_out(std::span<const OutcomeOdds> odds,
                             int32_t max_outcomes,
                             int32_t max_per_sequence);

// How many of them to prepare, the likeliest first, when every one makes the draft's steps longer
// and the rounds leave it only so much time: the number with the most tokens expected to be at
// hand, chance of a hit times tokens of its block that stand. At least 1, when there is one.
struct VerifyTime {
  double verify_s = 0;  // from a round's begin to its outcome; 0 = not known: all of them
  // Seconds of a draft step by the number of outcomes in it, from 0 on; 0 = not known.
  std::span<const double> step_s;
  int32_t draft_len = 0;
  double acceptance = 0;
};
int32_t num_worth_preparing(std::span<const Outcome> outcomes, const VerifyTime& time);

}  // namespace outrider
