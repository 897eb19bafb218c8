// What the planner is told once: sizes, policies, and where drafts come from.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/base/block_source.h"

namespace outrider {

class BigramModel;
class GrammarEngine;

// Who runs first. kFcfs: in order of arrival. kPriority: by Request::priority, lower first, then
// arrival; and whoever waits gains on all that come later (priority_aging_rounds).
enum class SchedulingPolicy : uint8_t { kFcfs, kPriority };
// When a waiting sequence is let in. kMaxUtilization: when what it has now fits, with its first
// verify; later ones may be preempted. kGuaranteedNoEvict: when the longest texts that all running
// ones may still write fit too; nobody is ever preempted, and fewer run at once.
enum class CapacityPolicy : uint8_t { kMaxUtilization, kGuaranteedNoEvict };

// kGrammar: what a request's grammar forces. The others that draft without a model add it to theirs.
enum class DraftMethod : uint8_t { kNone, kDraftModel, kNgram, kUnigram, kBigram, kGrammar };

// Of the methods without a draft model: speculative_config's name, and what their tokens count as.
struct OwnDraftMethod {
  const char* name;
  DraftMethod method;
  BlockSource source;
};
inline constexpr auto kOwnDraftMethods = std::to_array<OwnDraftMethod>({
    {"ngram", DraftMethod::kNgram, BlockSource::kNgram},
    {"unigram", DraftMethod::kUnigram, BlockSource::kUnigram},
    {"bigram", DraftMethod::kBigram, BlockSource::kBigram},
    {"grammar", DraftMethod::kGrammar, BlockSource::kGrammar},
});

struct PlannerConfig {
  int32_t block_size = 16;
  int32_t num_blocks = 0;  // of the target's KV memory
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;  // rows per round
  int32_t max_model_len = 0;
  bool enable_prefix_caching = true;
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kPriority;
  // A point of priority is a lead of so many rounds: a request that came so many rounds earlier
  // runs before one whose priority is better by one. So nobody waits for ever behind better ones.
  // 0: priorities are absolute, and the better ones may starve the others.
  int32_t priority_aging_rounds = 256;
  CapacityPolicy capacity_policy = CapacityPolicy::kMaxUtilization;
  int32_t vocab_size = 0;  // of the target, to check draft tokens; 0 = unknown
  DraftMethod draft_method = DraftMethod::kNone;
  // Beside a draft model: who proposes where its block is not there: kNgram or kNone.
  DraftMethod backup_method = DraftMethod::kNone;
  int32_t num_speculative_tokens = 4;  // draft_len
  int32_t prompt_lookup_max = 4;       // n-gram: longest suffix looked for, and shortest
  int32_t prompt_lookup_min = 2;
  int32_t num_draft_candidates = 16;  // unigram, bigram: entries of the draft's distribution
  // Unigram, bigram: what a text taught; null = learn from what is served.
  std::shared_ptr<const BigramModel> draft_corpus;
  std::shared_ptr<const GrammarEngine> grammars;  // null: grammars shape no draft
  bool reports_freed_blocks = false;  // in RoundPlan::freed
};

// Priorities beyond this, on either side, count as this: it bounds what aging has to make up for.
inline constexpr int32_t kLargestPriority = 100;

}  // namespace outrider
