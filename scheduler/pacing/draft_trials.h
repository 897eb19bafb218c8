// Whether a draft model at work is worth what it takes from the target. It is measured: rounds with
// the draft idle and rounds with it at work take turns, for each size of the batch, and the kind
// that makes more tokens per second goes on. Only how a size begins is expected. Plain values; no
// clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace outrider {

// Tokens of a sequence and seconds, of rounds of one kind: sums that decay.
class RoundRate {
 public:
  // tokens: of a sequence, on average. A disturbed round may take many times as long as others: it
  // counts as a few times the median of the last ones.
  void add(double tokens, double seconds);

  double num_rounds() const { return num_rounds_; }  // that count
  double value() const { return seconds_ > 0 ? num_tokens_ / seconds_ : 0; }
  double round_s() const { return num_rounds_ > 0 ? seconds_ / num_rounds_ : 0; }
  // One standard deviation of value(), by it: from how far the rounds lie apart, and how few of
  // them there are.
  double relative_error(int32_t num_sequences) const;

 private:
  double without_outlier(double seconds);

  double num_rounds_ = 0;
  double num_tokens_ = 0;
  double seconds_ = 0;
  double tokens_tokens_ = 0;
  double tokens_seconds_ = 0;
  double seconds_seconds_ = 0;
  std::array<double, 9> last_s_{};
  size_t num_seen_ = 0;
};

class DraftTrials {
 public:
  // What the draft does during a round.
  enum Arm : size_t { kIdle, kWorking };

  // What a batch counts as: the nearest power of two. A full one, of as many as the server takes,
  // is mostly such a number: it stays what it is while a sequence that ended is replaced.
  static int32_t usual_size(int32_t num_sequences);

  // Of the next round. expected: of a batch of the usual size, while none was tried both ways.
  Arm arm(int32_t num_sequences, Arm expected = kWorking) const;
  // The draft has just begun to work, or begun again: its first rounds do not count, and are there
  // to learn how fast it is.
  bool warms_up(int32_t num_sequences) const;

  // A round without rows of prompts. arm: what the draft really did.
  void record_round(
      int32_t num_sequences, int32_t num_tokens, double seconds, Arm arm, Arm expected = kWorking);

  // Null when such rounds were not measured.
  const RoundRate* rate(int32_t num_sequences, Arm arm) const;
  // Tokens per second of rounds with the draft at work over those with it idle, by all trials.
  std::optional<double> gain(int32_t num_sequences) const;

 private:
  // Batches of about one size. One kind of round is in use; after a while the other one is tried.
  struct Batch {
    Arm in_use = kWorking;
    bool trying = false;          // the other one, now
    int64_t num_rounds = 0;       // since the arm changed
    int64_t num_until_trial = 0;  // rounds of the kind in use
    int num_confirmed = 0;        // trials in a row that changed nothing
    std::array<RoundRate, 2> rates;
    double rate_at_trial = 0;  // of the kind in use
    // The whole of a trial, its first rounds too.
    double trial_tokens = 0;  // of a sequence
    double trial_s = 0;
    // Logarithm of working over idle rounds' rates: mean and inverse variance, by all trials.
    double log_gain = 0;
    double weight = 0;

    Arm arm() const { return trying ? (in_use == kIdle ? kWorking : kIdle) : in_use; }
    bool idles_untried() const { return in_use == kIdle && !trying && weight == 0; }
  };
  Arm guess(int32_t size, Arm expected) const;
  Batch& batch_of(int32_t num_sequences, Arm expected);
  static void begin_trial(Batch& batch);
  static void judge(Batch& batch, int32_t num_sequences);
  static void end_trial(Batch& batch, bool changes);

  std::map<int32_t, Batch> batches_;  // by usual_size()
};

}  // namespace outrider
