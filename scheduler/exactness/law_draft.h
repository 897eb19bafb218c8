// The draft's side of counted losslessness: what is proposed to every sequence of a batch, step
// by step for all of them together, by propose_ranked() as a draft rank does it. Used by
// law_sampler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/law_sampler.h"
#include "scheduler/exactness/toy_model.h"
#include "scheduler/round.h"
#include "scheduler/rows/host_row_scanner.h"

namespace outrider {

// One speculative sequence under way.
struct LawSequence {
  SamplingParams params;
  std::vector<int32_t> tokens;
  uint32_t round = 0;
  std::vector<DraftToken> draft;
  std::optional<DraftToken> bonus_draft;
  // The tokens, and behind them what leads to the next draft token.
  std::vector<int32_t> context;
  std::vector<int32_t> guesses;  // of the token after so many accepted ones; with kPrepared
  bool prepared = true;
};

// As part of the noise keys.
uint32_t noise_round(const LawCase& law_case, const LawSequence& sequence);

// The token with the greatest log weight + Gumbel noise: a draw, written anew for broken rules.
int32_t draw_by_noise(std::span<const double> weights, const NoiseKey& key);

class LawDraft {
 public:
  // All must outlive this. mask: of the case's parameters, or null.
  LawDraft(const LawCase& law_case,
           const ToyModel& draft,
           int32_t num_prompt_tokens,
           const TokenMask* mask)
      : case_(law_case), draft_(draft), num_prompt_tokens_(num_prompt_tokens), mask_(mask) {}

  // Gives each sequence its draft of this round, and its bonus draft token where it has one.
  void propose(std::span<LawSequence> batch);

 private:
  // A sequence that wants tokens in this round.
  struct Line {
    LawSequence* sequence = nullptr;
    int num_wanted = 0;
    bool has_bonus_draft = false;
  };
  bool begin(Line& line) const;
  int draft_len(const LawSequence& sequence) const;
  bool has_bonus_draft(const LawSequence& sequence) const;
  bool may_be_judged(const LawSequence& sequence, const DraftToken& bonus_draft) const;
  int32_t likeliest_but(const LawSequence& sequence, int32_t excluded) const;
  void take(Line& line, int step, DraftToken token) const;
  std::vector<DraftToken> step_of(std::span<const Line> lines);
  DraftInput input_of(const LawSequence& sequence) const;
  int32_t draw_with_residual_noise(const LawSequence& sequence, const DraftToken& token) const;

  const LawCase& case_;
  const ToyModel& draft_;
  const int32_t num_prompt_tokens_;
  const TokenMask* mask_;
  HostRowScanner scanner_;
};

}  // namespace outrider
