// See setting.h.
#include "tests/simulation/setting.h"

#include <algorithm>

#include "runtime/ranks/loading/engine_sizes.h"

namespace outrider::test {
namespace {

PlannerConfig random_planner(Dice& dice) {
  PlannerConfig config;
  config.block_size = dice.between(1, 6);
  config.max_model_len = dice.between(8, 64);
  const int32_t num_alone = (config.max_model_len + config.block_size - 1) / config.block_size;
  config.num_blocks = num_alone + dice.below(3 * num_alone);
  config.max_num_seqs = dice.between(1, 8);
  config.max_num_batched_tokens = dice.chance(250) ? dice.between(1, 4) : dice.between(4, 48);
  config.enable_prefix_caching = dice.chance(750);
  const int32_t agings[] = {0, 1, 4, 256};
  config.priority_aging_rounds = agings[dice.below(4)];
  if (dice.chance(200)) config.capacity_policy = CapacityPolicy::kGuaranteedNoEvict;
  if (dice.chance(150)) config.scheduling_policy = SchedulingPolicy::kFcfs;
  config.vocab_size = ToyLaw::kVocabSize;
  config.draft_method = DraftMethod::kDraftModel;
  config.num_speculative_tokens = dice.between(1, 6);
  if (dice.chance(400)) config.backup_method = DraftMethod::kNgram;
  config.prompt_lookup_min = dice.between(1, 2);
  return config;
}

LinkFaults random_link(Dice& dice) {
  LinkFaults link;
  link.usual_us = dice.below(400);
  link.latest_us = dice.chance(500) ? dice.between(500, 5000) : dice.between(5000, 400000);
  if (dice.chance(200)) return link;
  const auto some = [&](int32_t most) { return dice.chance(400) ? dice.below(most) : 0; };
  link.dropped = some(200);
  link.doubled = some(300);
  link.late = some(400);
  link.flipped = some(100);
  link.cut = some(50);
  link.stale = some(50);
  return link;
}

}  // namespace

ModelOptions Setting::target_sizes() const {
  const int32_t most = std::max(planner.max_num_batched_tokens, planner.max_num_seqs);
  return {.block_size = planner.block_size,
          .num_blocks = planner.num_blocks,
          .max_rows = most,
          .max_logit_rows = most};
}

ModelOptions Setting::draft_sizes() const {
  const ModelOptions sizes = target_sizes();
  return {.block_size = sizes.block_size,
          .num_blocks = draft_blocks,
          .max_rows = sizes.max_rows + kMaxDraftBranches,
          .max_logit_rows = planner.max_num_seqs + kMaxDraftBranches};
}

Setting random_setting(uint64_t seed, Sabotage sabotage) {
  Dice dice(mix_seed(seed, 0x5E77));
  Setting setting;
  setting.seed = seed;
  setting.sabotage = sabotage;
  setting.planner = random_planner(dice);
  setting.poisons = dice.chance(250);
  setting.planner.reports_freed_blocks = setting.poisons;
  setting.num_targets = dice.between(2, 3);
  setting.law = {.seed = dice.bits(),
                 .agreement_permille = static_cast<uint32_t>(dice.between(200, 1000))};
  setting.target = {.law = setting.law,
                    .is_device = dice.chance(500),
                    .step_ns = 1000 * dice.between(200, 3000),
                    .row_ns = 1000 * dice.below(60),
                    .jitter_ns = 1000 * dice.between(1, 300),
                    .max_positions = setting.planner.max_model_len + 64};
  setting.draft = setting.target;
  setting.draft.is_draft = true;
  setting.draft.is_device = false;
  const int32_t share = dice.chance(700) ? dice.between(20, 300) : dice.between(300, 3000);
  setting.draft.step_ns = setting.target.step_ns * share / 1000;
  setting.draft.row_ns = setting.target.row_ns * share / 1000;
  setting.draft_blocks =
      setting.planner.num_blocks * (dice.chance(300) ? 1 : dice.between(2, 4)) + 8;
  const AsyncDrafting ways[] = {AsyncDrafting::kOff, AsyncDrafting::kChain, AsyncDrafting::kCache};
  setting.async_drafting = ways[dice.below(3)];
  setting.chooses_draft_len = dice.chance(500);
  if (setting.chooses_draft_len) setting.planner.num_speculative_tokens = dice.between(4, 8);
  setting.to_draft = random_link(dice);
  setting.from_draft = random_link(dice);
  setting.draft_faults = {.lies = dice.chance(500) ? dice.below(600) : 0,
                          .deaths = dice.chance(400) ? dice.below(20) : 0,
                          .stalls = dice.chance(300) ? dice.below(20) : 0,
                          .longest_away_us = dice.between(1000, 1000000),
                          .joins_after_us = dice.chance(250) ? dice.below(500000) : 0};
  setting.clients = {.num_requests = dice.between(10, 80),
                     .arrivals = dice.between(30, 900),
                     .cancels = dice.chance(400) ? dice.below(100) : 0,
                     .shared_beginnings = dice.chance(500) ? dice.below(1000) : 0,
                     .spoiled = dice.chance(250) ? dice.below(200) : 0,
                     .priorities = dice.chance(350),
                     .stops = dice.chance(50) ? dice.between(1, 20) : 0};
  if (setting.planner.scheduling_policy == SchedulingPolicy::kFcfs)
    setting.clients.priorities = false;
  if (sabotage == Sabotage::kKeepDirt) {
    setting.target.clears_blocks = false;
    setting.poisons = setting.planner.reports_freed_blocks = true;
  }
  return setting;
}

}  // namespace outrider::test
