// Who runs when there is not room for all: priorities and their aging, preemption, chunked prompts
// beside decoding sequences, and admission by worst case. Time here is rounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "scheduler/batching/planner.h"

namespace outrider {
namespace {

PlannerConfig crowded_config() {
  PlannerConfig config;
  config.block_size = 4;
  config.num_blocks = 24;
  config.max_num_seqs = 3;
  config.max_num_batched_tokens = 12;
  config.max_model_len = 48;
  config.vocab_size = 1000;
  return config;
}

struct Life {
  int32_t priority = 0;
  int64_t arrived = 0;  // round
  int64_t first = -1;   // round of its first rows
  int64_t ended = -1;   // round
  int32_t num_tokens = 0;
  int32_t num_prompt = 0;
  std::shared_ptr<ResultStream> stream;
  uint64_t num_preemptions = 0;
};

// A planner with ranks that answer at once and accept every draft; the rounds are counted.
class Crowd {
 public:
  explicit Crowd(const PlannerConfig& config) : planner(config), random(7) {}

  uint64_t add(int32_t num_prompt, int32_t max_tokens, int32_t priority = 0) {
    Request request;
    request.id = lives.size() + 1;
    for (int32_t i = 0; i < num_prompt; ++i) {
      request.prompt.push_back(static_cast<int32_t>(random() % 1000));
    }
    request.params.max_tokens = max_tokens;
    request.priority = priority;
    request.stream = std::make_shared<ResultStream>();
    EXPECT_EQ(planner.refusal(request), "");
    lives[request.id] = {priority, round, -1, -1, 0, num_prompt, request.stream, 0};
    planner.add(request);
    return lives.size();
  }

  RoundPlan step() {
    RoundPlan plan = planner.plan();
    RoundDecision decision;
    for (const SequencePlan& rows : plan.sequences) {
      Life& life = lives.at(rows.sequence_id);
      if (life.first < 0) life.first = round;
      SequenceDecision made;
      made.sequence_id = rows.sequence_id;
      const int32_t end = rows.first_position + rows.num_committed_rows;
      if (end == life.num_prompt + life.num_tokens) {
        made.num_accepted = static_cast<int32_t>(rows.draft.size());
        made.next_token = static_cast<int32_t>(random() % 1000);
      }
      decision.sequences.push_back(made);
    }
    planner.apply(plan, decision);
    EXPECT_EQ(planner.fault(), "");
    for (auto& [id, life] : lives) listen(life);
    ++round;
    return plan;
  }

  void run_until_idle(int64_t most) {
    for (int64_t i = 0; i < most && !planner.idle(); ++i) step();
    EXPECT_TRUE(planner.idle());
  }

  Planner planner;
  std::map<uint64_t, Life> lives;
  int64_t round = 0;
  std::mt19937 random;

 private:
  void listen(Life& life) {
    if (life.ended >= 0) return;
    while (auto event = life.stream->wait_next(std::chrono::milliseconds(0))) {
      life.num_tokens += static_cast<int32_t>(event->tokens.size());
      life.num_preemptions = static_cast<uint64_t>(event->num_preemptions);
      if (event->finish_reason != FinishReason::kNone) life.ended = round;
    }
  }
};

const SequencePlan* rows_of(const RoundPlan& plan, uint64_t id) {
  const auto found = std::ranges::find(plan.sequences, id, &SequencePlan::sequence_id);
  return found == plan.sequences.end() ? nullptr : &*found;
}

// One slot, and in every round somebody better comes. Returns the round in which the other got in.
int64_t rounds_behind_better_ones(int32_t aging, int32_t lead, int64_t most) {
  PlannerConfig config = crowded_config();
  config.max_num_seqs = 1;
  config.priority_aging_rounds = aging;
  Crowd crowd(config);
  const uint64_t last = crowd.add(4, 1, lead);
  for (int64_t i = 0; i < most && crowd.lives[last].first < 0; ++i) {
    crowd.add(4, 1, 0);
    crowd.step();
  }
  return crowd.lives[last].first;
}

// At a tie the better priority goes first, hence one round more.
TEST(Fairness, APointOfPriorityIsALeadOfSoManyRounds) {
  EXPECT_EQ(rounds_behind_better_ones(10, 1, 1000), 11);
  EXPECT_EQ(rounds_behind_better_ones(10, 3, 1000), 31);
  EXPECT_EQ(rounds_behind_better_ones(1, 7, 1000), 8);
  // Beyond the largest it counts as that: nobody can be made to wait longer.
  EXPECT_EQ(rounds_behind_better_ones(2, INT32_MAX, 1000), 2 * kLargestPriority + 1);
}

TEST(Fairness, WithoutAgingBetterOnesMayStarveOthers) {
  EXPECT_EQ(rounds_behind_better_ones(0, 1, 2000), -1);
}

TEST(Fairness, EqualPrioritiesRunInOrderOfArrival) {
  for (const SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
    PlannerConfig config = crowded_config();
    config.scheduling_policy = policy;
    Crowd crowd(config);
    for (int i = 0; i < 60; ++i) {
      crowd.add(1 + static_cast<int32_t>(crowd.random() % 20), 1 + i % 9);
      if (i % 3 == 0) crowd.step();
    }
    crowd.run_until_idle(2000);
    int64_t last = 0;
    for (const auto& [id, life] : crowd.lives) {
      EXPECT_GE(life.first, last) << id;
      last = life.first;
    }
    EXPECT_GT(last, 50);
  }
}

TEST(Fairness, FcfsTakesNoPriorities) {
  PlannerConfig config = crowded_config();
  config.scheduling_policy = SchedulingPolicy::kFcfs;
  const Planner planner(config);
  Request request;
  request.id = 1;
  request.prompt = {1};
  EXPECT_EQ(planner.refusal(request), "");
  request.priority = -1;
  EXPECT_EQ(planner.refusal(request),
            "priority is -1, and this server runs requests in order of arrival "
            "(scheduling_policy fcfs)");
}

// Random crowds that never thin out while anybody of the first hundred is there. A request is only
// kept waiting by those that stand before it in line, of which only so many can ever come; while it
// is first of all, it waits at most for the running ones to end.
struct Wait {
  int64_t longest = 0;
  int64_t num_over = 0;  // waited longer than those before it can explain
  uint64_t num_preemptions = 0;
};

int32_t small_ones_waiting(const Crowd& crowd) {
  int32_t num_waiting = 0;
  for (const auto& [id, life] : crowd.lives) {
    if (life.first < 0 && life.num_prompt < 20) ++num_waiting;
  }
  return num_waiting;
}

Wait wait_in_a_crowd(uint32_t seed, int32_t aging) {
  PlannerConfig config = crowded_config();
  config.priority_aging_rounds = aging;
  config.num_blocks = 13;
  Crowd crowd(config);
  crowd.random.seed(seed);
  const auto below = [&](uint32_t limit) { return static_cast<int32_t>(crowd.random() % limit); };
  static constexpr uint64_t kNumWatched = 60;
  constexpr int64_t kMostRounds = 3000;
  const auto watched_are_done = [&] {
    return crowd.lives.size() >= kNumWatched &&
           std::all_of(crowd.lives.begin(), crowd.lives.end(), [](const auto& entry) {
             return entry.first > kNumWatched || entry.second.ended >= 0;
           });
  };
  while (!watched_are_done() && crowd.round < kMostRounds) {
    // Now and then a large one of low priority; always small ones of high priority.
    if (below(10) == 0) crowd.add(20 + below(20), 8, 2 + below(6));
    for (int32_t num_small = small_ones_waiting(crowd); num_small < 3; ++num_small) {
      crowd.add(1 + below(6), 1 + below(12), -below(3));
    }
    crowd.step();
  }
  Wait wait;
  wait.num_preemptions = crowd.planner.counters().num_preemptions;
  // Alone and first in line: all its tokens again after a preemption, then one by one.
  const int64_t rounds_each = 2 * config.max_model_len;
  for (uint64_t id = 1; id <= kNumWatched; ++id) {
    const Life& life = crowd.lives.at(id);
    const int64_t turn = life.arrived + int64_t{life.priority} * aging;
    int64_t num_before = 0;
    for (const auto& [other, before] : crowd.lives) {
      if (before.ended >= 0 && before.ended < life.arrived) continue;
      if (before.arrived + int64_t{before.priority} * aging <= turn) ++num_before;
    }
    const int64_t waited = (life.ended < 0 ? crowd.round : life.ended) - life.arrived;
    wait.longest = std::max(wait.longest, waited);
    if (waited > (num_before + config.max_num_seqs) * rounds_each || life.ended < 0)
      ++wait.num_over;
  }
  return wait;
}

TEST(Fairness, NobodyStarvesInAnEndlessCrowd) {
  uint64_t num_preemptions = 0;
  int64_t longest = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const Wait wait = wait_in_a_crowd(seed, 16);
    EXPECT_EQ(wait.num_over, 0) << seed;
    num_preemptions += wait.num_preemptions;
    longest = std::max(longest, wait.longest);
  }
  EXPECT_GT(num_preemptions, 50u);  // some were thrown out, and came back
  EXPECT_GT(longest, 100);
  // The control: with absolute priorities the same crowds do starve some.
  int64_t num_starved = 0;
  for (uint32_t seed = 1; seed <= 5; ++seed) num_starved += wait_in_a_crowd(seed, 0).num_over;
  EXPECT_GT(num_starved, 5);
}

// One that is large waits in front of the line until it fits; smaller ones do not slip past it.
TEST(Fairness, SmallOnesDoNotOvertakeALargeOne) {
  Crowd crowd(crowded_config());
  for (int i = 0; i < 3; ++i) crowd.add(4, 20);
  crowd.step();
  const uint64_t large = crowd.add(40, 8);
  for (int i = 0; i < 200 && crowd.lives[large].ended < 0; ++i) {
    crowd.add(1, 4);
    crowd.step();
  }
  const int64_t first = crowd.lives[large].first;
  EXPECT_GT(first, 5);
  EXPECT_LT(first, 40);
  for (const auto& [id, life] : crowd.lives) {
    if (id > large && life.first >= 0) {
      EXPECT_GE(life.first, first) << id;
    }
  }
}

TEST(Fairness, ThePreemptedComeBackBeforeAllThatCameLater) {
  PlannerConfig config = crowded_config();
  config.num_blocks = 12;
  config.max_num_seqs = 4;
  config.enable_prefix_caching = false;
  Crowd crowd(config);
  int64_t num_thrown_out = 0;
  int64_t num_let_in_since = 0;
  for (int i = 0; i < 400; ++i) {
    if (crowd.planner.counters().num_waiting < 3) crowd.add(8, 24);
    const RoundPlan plan = crowd.step();
    const int64_t round = crowd.round - 1;
    const bool somebody_is_new =
        std::any_of(crowd.lives.begin(), crowd.lives.end(), [&](const auto& entry) {
          return entry.second.first == round;
        });
    for (const auto& [id, life] : crowd.lives) {
      const bool is_out = life.first >= 0 && life.first < round && life.ended < 0 &&
                          life.num_tokens > 0 && rows_of(plan, id) == nullptr;
      num_thrown_out += is_out ? 1 : 0;
      num_let_in_since += somebody_is_new ? 1 : 0;
      EXPECT_FALSE(is_out && somebody_is_new) << id << " waits and a later one is let in";
    }
  }
  EXPECT_GT(num_thrown_out, 20);
  EXPECT_GT(num_let_in_since, 20);
  EXPECT_GT(crowd.planner.counters().num_preemptions, 5u);
  crowd.run_until_idle(2000);
  uint64_t num_preemptions = 0;
  for (const auto& [id, life] : crowd.lives) {
    EXPECT_EQ(life.num_tokens, 24) << id;
    num_preemptions += life.num_preemptions;
  }
  EXPECT_EQ(num_preemptions, crowd.planner.counters().num_preemptions);
}

// Long prompts arrive without end: whoever decodes still gets a token in every round, and the
// prompts still get the rest of the budget.
TEST(Fairness, PromptsAndDecodesShareTheBudget) {
  PlannerConfig config = crowded_config();
  config.num_blocks = 400;
  config.max_num_seqs = 6;
  config.max_num_batched_tokens = 10;
  config.max_model_len = 200;
  config.enable_prefix_caching = false;
  config.draft_method = DraftMethod::kNgram;
  config.num_speculative_tokens = 8;
  config.prompt_lookup_min = 1;
  Crowd crowd(config);
  int64_t num_mixed = 0;
  int64_t num_verified_beside_prompts = 0;
  std::map<uint64_t, bool> decodes;  // sampled in the last round and goes on
  for (int i = 0; i < 3000; ++i) {
    if (crowd.planner.counters().num_waiting < 2) {
      crowd.add(60 + static_cast<int32_t>(crowd.random() % 60),
                20 + static_cast<int32_t>(crowd.random() % 40));
    }
    const RoundPlan plan = crowd.step();
    int64_t num_decode_rows = 0;
    int64_t num_draft_rows = 0;
    int64_t num_prompt_rows = 0;
    bool cuts_a_prompt = false;
    for (const SequencePlan& rows : plan.sequences) {
      const bool decoding = decodes.count(rows.sequence_id) > 0;
      (decoding ? num_decode_rows : num_prompt_rows) += rows.num_committed_rows;
      num_draft_rows += static_cast<int64_t>(rows.draft.size());
      cuts_a_prompt = cuts_a_prompt || rows.first_position + rows.num_committed_rows <
                                           crowd.lives.at(rows.sequence_id).num_prompt;
    }
    for (const auto& [id, yes] : decodes) EXPECT_NE(rows_of(plan, id), nullptr) << id;
    EXPECT_LE(num_decode_rows + num_prompt_rows + num_draft_rows, 10);
    if (num_prompt_rows > 0 && num_decode_rows > 0) {
      ++num_mixed;
      if (num_draft_rows > 0 && cuts_a_prompt) ++num_verified_beside_prompts;
      // A prompt is cut only when the prompts have half of what the decodes leave.
      if (cuts_a_prompt) {
        EXPECT_GE(2 * num_prompt_rows, 10 - num_decode_rows);
      }
    }
    decodes.clear();
    for (const auto& [id, life] : crowd.lives) {
      if (life.num_tokens > 0 && life.ended < 0) decodes[id] = true;
    }
  }
  EXPECT_GT(num_mixed, 1000);
  EXPECT_GT(num_verified_beside_prompts, 100);
  int64_t num_ended = 0;
  for (const auto& [id, life] : crowd.lives) num_ended += life.ended >= 0 ? 1 : 0;
  EXPECT_GT(num_ended, 100);
}

uint64_t preemptions_of(CapacityPolicy policy, uint32_t seed, bool reuse) {
  PlannerConfig config = crowded_config();
  config.capacity_policy = policy;
  config.enable_prefix_caching = reuse;
  config.max_num_seqs = 6;
  config.num_blocks = 14;
  config.draft_method = DraftMethod::kNgram;
  config.prompt_lookup_min = 1;
  Crowd crowd(config);
  crowd.random.seed(seed);
  for (int i = 0; i < 40; ++i) {
    crowd.add(1 + static_cast<int32_t>(crowd.random() % 16),
              1 + static_cast<int32_t>(crowd.random() % 32));
    crowd.step();
  }
  crowd.run_until_idle(5000);
  return crowd.planner.counters().num_preemptions;
}

TEST(Capacity, GuaranteedNoEvictNeverPreempts) {
  uint64_t num_preemptions = 0;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    for (const bool reuse : {false, true}) {
      EXPECT_EQ(preemptions_of(CapacityPolicy::kGuaranteedNoEvict, seed, reuse), 0u) << seed;
      num_preemptions += preemptions_of(CapacityPolicy::kMaxUtilization, seed, reuse);
    }
  }
  EXPECT_GT(num_preemptions, 200u);
}

// 8 + 17 tokens: the last is never computed, so 24 positions, 6 blocks each; 24 blocks hold four.
TEST(Capacity, WorstCasesAreCountedToTheBlock) {
  PlannerConfig config = crowded_config();
  config.capacity_policy = CapacityPolicy::kGuaranteedNoEvict;
  config.enable_prefix_caching = false;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  for (const int32_t num_blocks : {23, 24}) {
    config.num_blocks = num_blocks;
    Crowd crowd(config);
    for (int i = 0; i < 5; ++i) crowd.add(8, 17);
    EXPECT_EQ(crowd.step().sequences.size(), num_blocks == 24 ? 4u : 3u);
    for (int i = 0; i < 15; ++i) {
      EXPECT_EQ(crowd.step().sequences.size(), num_blocks == 24 ? 4u : 3u);
    }
    crowd.run_until_idle(100);
    EXPECT_EQ(crowd.planner.counters().num_preemptions, 0u);
  }
}

}  // namespace
}  // namespace outrider
