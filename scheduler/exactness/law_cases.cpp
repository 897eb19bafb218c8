// See law_cases.h.
#include "scheduler/exactness/law_cases.h"

#include <algorithm>
#include <memory>

#include "runtime/base/error.h"
#include "scheduler/exactness/toy_model.h"

namespace outrider {
namespace {

LawCase base_case(const char* name, VerifyMode mode) {
  LawCase law_case;
  law_case.name = name;
  law_case.params.verify_mode = mode;
  return law_case;
}

class CaseList {
 public:
  explicit CaseList(VerifyMode mode) : mode_(mode) {}
  // Valid until the next call.
  LawCase& add(const char* name) { return cases_.emplace_back(base_case(name, mode_)); }
  std::vector<LawCase> take() { return std::move(cases_); }

 private:
  VerifyMode mode_;
  std::vector<LawCase> cases_;
};

void add_filters(CaseList& list) {
  list.add("top_k").params.top_k = 2;
  list.add("top_p").params.top_p = 0.8f;
  list.add("min_p").params.min_p = 0.2f;
  LawCase& all = list.add("all_filters");
  all.vocab_size = 8;
  all.num_tokens = 2;
  all.draft_len = 1;
  all.params.temperature = 1.5f;
  all.params.top_k = 6;
  all.params.top_p = 0.93f;
  all.params.min_p = 0.05f;
}

void add_typical(CaseList& list) {
  LawCase& typical = list.add("typical_p");
  typical.vocab_size = 5;
  typical.params.typical_p = 0.7f;
  LawCase& narrow = list.add("typical_p_narrow");
  narrow.vocab_size = 8;
  narrow.num_tokens = 2;
  narrow.draft_len = 1;
  narrow.target_spread = 0.5f;  // flat rows: the likeliest tokens are often cut
  narrow.draft_spread = 0.3f;
  narrow.params.typical_p = 0.3f;
  LawCase& all = list.add("all_filters_and_typical_p");
  all.vocab_size = 8;
  all.num_tokens = 2;
  all.draft_len = 1;
  all.params.temperature = 1.5f;
  all.params.top_k = 7;
  all.params.top_p = 0.97f;
  all.params.min_p = 0.02f;
  all.params.typical_p = 0.8f;
}

void add_masks(CaseList& list) {
  LawCase& allowed = list.add("allowed_token_ids");
  allowed.vocab_size = 7;
  allowed.params.allowed_token_ids = {0, 2, 3, 6};
  list.add("bad_words").params.bad_words = {{2}, {0, 1}, {1, 3, 3}, {1, 2, 1, 0}};
  if (GrammarEngine::is_built()) {
    LawCase& grammar = list.add("grammar");
    grammar.vocab_size = 6;
    grammar.params.grammar = std::make_shared<const Grammar>(toy_grammar());
  }
  LawCase& both = list.add("masks_and_filters");
  both.vocab_size = 7;
  both.params.allowed_token_ids = {0, 1, 2, 4, 5};
  both.params.bad_words = {{4}, {0, 1}, {5, 5}};
  both.params.top_p = 0.95f;
  both.params.typical_p = 0.9f;
  both.params.presence_penalty = 0.4f;
}

void add_processors(CaseList& list) {
  SamplingParams& penalties = list.add("penalties").params;
  penalties.repetition_penalty = 1.4f;
  penalties.presence_penalty = 0.7f;
  penalties.frequency_penalty = 0.5f;
  SamplingParams& bias = list.add("bias_and_min_tokens").params;
  bias.logit_bias = {{0, -1.0f}, {2, 1.5f}};
  bias.stop_token_ids = {3};
  bias.min_tokens = 2;
}

void add_drafts(CaseList& list) {
  list.add("no_draft").draft = DraftKind::kNone;
  LawCase& short_blocks = list.add("blocks_of_one");
  short_blocks.draft_len = 1;
  short_blocks.num_tokens = 4;
  LawCase& long_blocks = list.add("blocks_of_three");
  long_blocks.draft_len = 3;
  long_blocks.num_tokens = 4;
  list.add("one_hot_likeliest").draft = DraftKind::kMostLikely;
  list.add("one_hot_repeat").draft = DraftKind::kLastRepeated;
  list.add("truncated_draft").num_candidates = 2;
}

LawCase broken(LawFault fault, VerifyMode mode, const char* name) {
  LawCase law_case = base_case(name, mode);
  law_case.fault = fault;
  return law_case;
}

}  // namespace

std::vector<LawCase> sampler_cases(VerifyMode mode) {
  CaseList list(mode);
  list.add("plain");
  LawCase& warm = list.add("warm_many_cells");
  warm.vocab_size = 6;
  warm.draft_len = 3;
  warm.model_seed = 31;  // the law on which noise without the round is shown to fail
  warm.draft_spread = 1.5f;
  list.add("cold").params.temperature = 0.6f;
  add_filters(list);
  add_typical(list);
  add_masks(list);
  add_processors(list);
  add_drafts(list);
  return list.take();
}

std::vector<LawCase> bonus_draft_cases(VerifyMode mode) {
  std::vector<LawCase> cases;
  for (LawCase law_case : sampler_cases(mode)) {
    if (law_case.draft == DraftKind::kNone) continue;
    law_case.name = "proposed_" + law_case.name;
    law_case.bonus_drafts = BonusDrafts::kSometimes;
    cases.push_back(law_case);
  }
  const auto add =
      [&](const char* name, BonusDrafts bonus_drafts, BlockSize block_size) -> LawCase& {
    LawCase& law_case = cases.emplace_back(base_case(name, mode));
    law_case.bonus_drafts = bonus_drafts;
    law_case.block_size = block_size;
    law_case.num_tokens = 4;
    return law_case;
  };
  add("always_proposed", BonusDrafts::kAlways, BlockSize::kWhole);
  add("proposed_alone", BonusDrafts::kAlways, BlockSize::kWhole).draft_len = 0;
  add("proposed_to_any_block", BonusDrafts::kSometimes, BlockSize::kByCoin);
  add("any_block", BonusDrafts::kNone, BlockSize::kByCoin);
  add("prepared_and_proposed", BonusDrafts::kSometimes, BlockSize::kPrepared);
  LawCase& rounds = add("prepared_many_rounds", BonusDrafts::kSometimes, BlockSize::kPrepared);
  rounds.vocab_size = 3;
  rounds.num_tokens = 5;
  rounds.draft_len = 1;
  return cases;
}

std::vector<LawCase> negative_controls() {
  std::vector<LawCase> cases;
  LawCase shared =
      broken(LawFault::kDraftSharesResidualNoise, VerifyMode::kStandard, "shared_noise");
  shared.model_seed = 21;
  shared.draft_spread = 1.5f;
  cases.push_back(shared);
  LawCase keyed = broken(LawFault::kRoundLeftOut, VerifyMode::kBlock, "position_keyed_noise");
  keyed.vocab_size = 6;
  keyed.draft_len = 3;
  keyed.model_seed = 31;
  keyed.draft_spread = 1.5f;
  cases.push_back(keyed);
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    cases.push_back(broken(LawFault::kBonusFromWrongRow, mode, "off_by_one_bonus"));
  }
  cases.push_back(
      broken(LawFault::kAcceptByTargetProb, VerifyMode::kStandard, "accept_by_target_prob"));
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock}) {
    cases.push_back(broken(LawFault::kBonusDraftByValue, mode, "bonus_draft_by_value"));
    cases.back().bonus_drafts = BonusDrafts::kAlways;
  }
  cases.push_back(broken(
      LawFault::kBonusWhereDraftRejected, VerifyMode::kStandard, "bonus_where_draft_rejected"));
  cases.back().bonus_drafts = BonusDrafts::kAlways;
  cases.push_back(broken(LawFault::kMaskWithoutDraft, VerifyMode::kStandard, "mask_without_draft"));
  cases.back().params.bad_words = {{0, 1}, {1, 3, 3}};
  return cases;
}

// max(t_j / t_i, d_j / d_i) is the first where t_j / d_j >= t_i / d_i, else the second. So in the
// order of t / d the inner sum is a tail of the t over t_i and a head of the d over d_i.
double coupled_agreement(const std::vector<double>& target_probs,
                         const std::vector<double>& draft_probs) {
  OUTRIDER_CHECK(target_probs.size() == draft_probs.size());
  struct Pair {
    double target, draft;
  };
  std::vector<Pair> pairs;
  for (size_t i = 0; i < target_probs.size(); ++i) {
    const Pair pair = {target_probs[i], draft_probs[i]};
    if (pair.target > 0 || pair.draft > 0) pairs.push_back(pair);
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return a.target * b.draft < b.target * a.draft;
  });
  double target_from_here = 0;
  for (const Pair& pair : pairs) target_from_here += pair.target;
  double draft_before = 0;
  double agreement = 0;
  for (const Pair& pair : pairs) {
    if (pair.target > 0 && pair.draft > 0) {
      // Not below its own last term, whatever rounding has left.
      const double tail = std::max(target_from_here, pair.target);
      agreement += 1 / (tail / pair.target + draft_before / pair.draft);
    }
    target_from_here -= pair.target;
    draft_before += pair.draft;
  }
  return agreement;
}

}  // namespace outrider
