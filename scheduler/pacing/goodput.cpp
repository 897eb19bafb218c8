// See goodput.h.
#include "scheduler/pacing/goodput.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

constexpr size_t kUsualLen = 16;  // of a sequence's candidates

// Of a candidate, and how finely they are told apart.
constexpr double kMostWorth = 2;
constexpr int kPlacesPerToken = 2048;
constexpr int kNumPlaces = 2 * kPlacesPerToken + 1;

struct Candidate {
  double worth = 0;       // expected tokens that the row adds, now and by what follows
  int32_t sequence = 0;   // index in the state
  int32_t position = 0;   // in its block
  int32_t num_waits = 0;  // tokens to wait for until it is there; 0 = at hand
};

// One way to go: so many waits, so many rows.
struct Option {
  double value = 0;  // expected tokens - price * time
  int32_t num_waits = 0;
  int32_t num_rows = 0;  // of drafts
};

class Choice {
 public:
  Choice(const RoundState& state, const GoodputInputs& inputs) : state_(state), inputs_(inputs) {
    for (const SequenceState& sequence : state.sequences) {
      load_.kv_positions += sequence.num_context;
      load_.row_positions += sequence.num_context;
    }
    const auto num_sequences = static_cast<int32_t>(state.sequences.size());
    per_row_ = num_sequences > 0 ? static_cast<double>(load_.row_positions) / num_sequences : 0;
    load_.num_rows = num_sequences + state.num_prompt_rows;
    load_.kv_positions += state.num_prompt_kv_positions;
    load_.row_positions += state.num_prompt_positions;
    candidates_.reserve(static_cast<size_t>(num_sequences) * kUsualLen);
    for (int32_t i = 0; i < num_sequences; ++i) add_candidates(i);
    sort_by_worth();
    const auto budget = static_cast<size_t>(std::max(0, state.max_rows - load_.num_rows));
    num_most_ = std::min(budget, candidates_.size());
    const int32_t most_rows = load_.num_rows + static_cast<int32_t>(num_most_);
    step_s_ = inputs.steps->range(load_, most_rows, per_row_);
    if (inputs.overhead == nullptr) return;
    const std::vector<double> overhead_s =
        inputs.overhead->range({.num_rows = load_.num_rows}, most_rows, 0);
    for (size_t i = 0; i < step_s_.size(); ++i) step_s_[i] += overhead_s[i];
  }

  RoundChoice make() const {
    const Option now = best(0);
    const Option if_all_were_there = best(kMostDraftTokens);
    const Option planned = state_.may_wait ? best_wait(now, if_all_were_there.value) : now;
    RoundChoice choice;
    choice.wait = planned.num_waits > 0;
    choice.wait_s = choice.wait ? wait_s(planned.num_waits) : 0;
    choice.value = planned.value;
    choice.sequences.reserve(state_.sequences.size());
    for (const SequenceState& sequence : state_.sequences)
      choice.sequences.push_back({.sequence_id = sequence.sequence_id});
    take(planned, &SequenceChoice::draft_len, &choice);
    take(if_all_were_there, &SequenceChoice::wanted_len, &choice);
    serve_fixed(&choice);
    return choice;
  }

 private:
  // Rows of one sequence in the order of its block: their worth never rises, so that the likeliest
  // of all rows never have a gap in a block.
  void add_candidates(int32_t index) {
    const SequenceState& sequence = state_.sequences[static_cast<size_t>(index)];
    const SurvivalCurve& survival = inputs_.survival[static_cast<size_t>(index)];
    const int32_t most = std::min(sequence.limit, kMostDraftTokens);
    const double rise = sequence.judges_backup ? 0 : inputs_.hit_if_all_stand - inputs_.hit_if_not;
    const double follow = rise * worth_of_hit(inputs_, survival, state_.sequences.size());
    double worth = 1;
    for (int32_t i = 0; i < most; ++i) {
      const double here = survival[static_cast<size_t>(i)];
      const double before = i > 0 ? survival[static_cast<size_t>(i) - 1] : 1.0;
      if (here < pacing.least_survival && !sequence.fixed) break;
      // With one row more the chance that all stand falls from `before` to `here`.
      worth = std::min(worth, here - (before - here) * std::max(0.0, follow));
      if (worth <= 0 && !sequence.fixed) break;
      candidates_.push_back(
          {sequence.fixed ? 1 + here : worth, index, i, std::max(0, i + 1 - sequence.num_at_hand)});
    }
  }

  // Stable, which keeps a block's rows in order; and to a part of a token that the tables behind it
  // are not exact to. There may be a thousand rows, on the way from one round to the next.
  void sort_by_worth() {
    const auto place_of = [](const Candidate& candidate) {
      const double from_best = (kMostWorth - candidate.worth) * kPlacesPerToken;
      return static_cast<size_t>(std::clamp(from_best, 0.0, double{kNumPlaces - 1}));
    };
    std::array<uint32_t, kNumPlaces + 1> begin{};
    for (const Candidate& candidate : candidates_) ++begin[place_of(candidate) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<Candidate> sorted(candidates_.size());
    for (const Candidate& candidate : candidates_) sorted[begin[place_of(candidate)]++] = candidate;
    candidates_ = std::move(sorted);
  }

  // Until `num_waits` further tokens of the sequences that lack them are there.
  double wait_s(int32_t num_waits) const {
    double longest = 0;
    for (const SequenceState& sequence : state_.sequences) {
      const int32_t missing =
          std::min(num_waits, std::min(sequence.limit, kMostDraftTokens) - sequence.num_at_hand);
      if (missing <= 0 || !sequence.more_coming) continue;
      if (sequence.asked_len > 0) {
        longest = std::max(longest, rest_of_block(sequence));
        continue;
      }
      const double first = sequence.num_at_hand == 0 ? inputs_.first_token_s : inputs_.token_s;
      const double waited = std::max(0.0, sequence.waited_s);
      longest = std::max(longest, rest_of(first, waited) + (missing - 1) * inputs_.token_s);
    }
    return longest;
  }

  // Who has waited longer than expected expects to wait as long again.
  static double rest_of(double expected, double waited) {
    return waited > expected ? waited : expected - waited;
  }
  double rest_of_block(const SequenceState& sequence) const {
    const double whole = inputs_.first_token_s + (sequence.asked_len - 1) * inputs_.token_s;
    return rest_of(whole, std::max(0.0, sequence.waited_s));
  }

  bool there(const Candidate& candidate, int32_t num_waits) const {
    if (candidate.num_waits == 0 || num_waits >= kMostDraftTokens) return true;
    const SequenceState& sequence = state_.sequences[static_cast<size_t>(candidate.sequence)];
    if (candidate.num_waits > num_waits || !sequence.more_coming) return false;
    return sequence.asked_len == 0 || candidate.position < sequence.asked_len;
  }

  // The rows that are worth most of those that are there by then.
  Option best(int32_t num_waits) const {
    const double waiting = num_waits >= kMostDraftTokens ? 0 : wait_s(num_waits);
    const auto at_rows = [&](int32_t rows) {
      return inputs_.price * step_s_[static_cast<size_t>(rows)];
    };
    double tokens = static_cast<double>(state_.sequences.size());
    Option best{.value = tokens - inputs_.price * waiting - at_rows(0), .num_waits = num_waits};
    int32_t rows = 0;
    for (const Candidate& candidate : candidates_) {
      if (!there(candidate, num_waits)) continue;
      if (rows == static_cast<int32_t>(num_most_)) break;
      tokens += candidate.worth;
      ++rows;
      const double value = tokens - inputs_.price * waiting - at_rows(rows);
      if (value > best.value) {
        best.value = value;
        best.num_rows = rows;
      }
    }
    return best;
  }

  // most_value: of what a round could do without any wait; longer waits cost more.
  Option best_wait(const Option& now, double most_value) const {
    Option found = now;
    int32_t most = 0;
    for (const Candidate& candidate : candidates_) most = std::max(most, candidate.num_waits);
    for (int32_t waits = 1; waits <= most; ++waits) {
      if (most_value - inputs_.price * wait_s(waits) <= found.value) break;
      const Option option = best(waits);
      if (option.value > found.value) found = option;
    }
    return found;
  }

  void take(const Option& option, int32_t SequenceChoice::*length, RoundChoice* choice) const {
    int32_t rows = 0;
    for (const Candidate& candidate : candidates_) {
      if (rows == option.num_rows) return;
      if (!there(candidate, option.num_waits)) continue;
      ++(choice->sequences[static_cast<size_t>(candidate.sequence)].*length);
      ++rows;
    }
  }

  // They were promised a length, and the round waits for it.
  void serve_fixed(RoundChoice* choice) const {
    for (size_t i = 0; i < state_.sequences.size(); ++i) {
      const SequenceState& sequence = state_.sequences[i];
      if (!sequence.fixed) continue;
      SequenceChoice& own = choice->sequences[i];
      own.wanted_len = sequence.limit;
      const bool waits =
          state_.may_wait && sequence.more_coming && sequence.num_at_hand < sequence.limit;
      own.draft_len = waits ? sequence.limit : std::min(sequence.limit, sequence.num_at_hand);
      choice->wait = choice->wait || waits;
      if (waits)
        choice->wait_s = std::max(choice->wait_s, wait_s(sequence.limit - sequence.num_at_hand));
    }
  }

  const RoundState& state_;
  const GoodputInputs& inputs_;
  StepLoad load_;
  double per_row_ = 0;
  std::vector<Candidate> candidates_;  // the most worth first
  size_t num_most_ = 0;
  std::vector<double> step_s_;  // by rows of drafts
};

}  // namespace

double worth_of_hit(const GoodputInputs& inputs,
                    const SurvivalCurve& survival,
                    size_t num_sequences) {
  const int32_t prepared = std::min(inputs.num_prepared, kMostDraftTokens);
  const double share = 1.0 / static_cast<double>(num_sequences);
  double with = 0;
  double without = 0;
  for (int32_t i = 0; i < prepared; ++i) {
    const double here = survival[static_cast<size_t>(i)];
    with += here;
    const double token_s = i == 0 ? inputs.first_token_s : inputs.token_s;
    without += std::max(0.0, here - inputs.price * share * token_s);
  }
  return with - without;
}

RoundChoice choose_round(const RoundState& state, const GoodputInputs& inputs) {
  return Choice(state, inputs).make();
}

}  // namespace outrider
