// What the planner makes of a draft that drafts asynchronously: rounds written out by hand, then
// random streams of blocks (prepared, appended, late, repeated, with gaps, for other rounds and
// texts, malformed) against a reference that keeps everything and judges it when it is needed.
#include "scheduler/batching/draft_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "scheduler/batching/planner.h"
#include "scheduler/round.h"
#include "scheduler/verification/rules.h"
#include "tests/scheduler/packed.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kVocabSize = 12;

PlannerConfig async_config() {
  PlannerConfig config;
  config.block_size = 4;
  config.num_blocks = 64;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.max_model_len = 64;
  config.vocab_size = kVocabSize;
  config.enable_prefix_caching = false;
  config.draft_method = DraftMethod::kDraftModel;
  config.num_speculative_tokens = 3;
  return config;
}

Request async_request(uint64_t id, int32_t num_prompt, int32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt.assign(static_cast<size_t>(num_prompt), 1);
  request.params.max_tokens = max_tokens;
  request.params.async_drafting = AsyncDrafting::kCache;
  request.params.verify_mode = VerifyMode::kBlock;
  request.stream = std::make_shared<ResultStream>();
  return request;
}

DraftBlock block(uint64_t id,
                 uint32_t round,
                 int32_t base_len,
                 int32_t guess,
                 int32_t first,
                 const Tokens& tokens) {
  DraftBlock made{id, round, base_len, {}, guess, first};
  for (int32_t token : tokens) made.tokens.push_back({token, {}});
  return made;
}

Tokens ids_of(const std::vector<DraftToken>& tokens) {
  Tokens ids;
  for (const DraftToken& token : tokens) ids.push_back(token.token);
  return ids;
}

RoundDecision decide(const RoundPlan& plan, int32_t num_accepted, int32_t next_token) {
  RoundDecision decision;
  for (const SequencePlan& rows : plan.sequences) {
    SequenceDecision& made = decision.sequences.emplace_back();
    made.sequence_id = rows.sequence_id;
    made.num_accepted = std::min(num_accepted, static_cast<int32_t>(rows.draft.size()));
    made.next_token = next_token;
  }
  return decision;
}

// The text "aaaa..." is forced, but this target writes it token by token as it likes: forced drafts
// go on at any length while they are accepted, and keep to the chosen one when they are not.
TEST(GrammarDrafts, AreAsLongAsChosenOnceTheyAreRejected) {
  if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
  std::vector<std::string> token_bytes(kVocabSize);
  token_bytes[1] = "a";
  token_bytes[2] = "aa";
  PlannerConfig config = async_config();
  config.draft_method = DraftMethod::kGrammar;
  config.grammars = std::make_shared<const GrammarEngine>(token_bytes, kVocabSize);
  Planner planner(config);
  Request request = async_request(1, 4, 50);
  request.params.grammar =
      std::make_shared<const Grammar>(Grammar{GrammarKind::kRegex, std::string(120, 'a')});
  planner.add(std::move(request));
  planner.set_draft_len(0);
  RoundPlan plan;
  for (int round = 0; round < 4; ++round) {
    plan = planner.plan();
    ASSERT_EQ(ids_of(plan.sequences[0].draft), (Tokens{2, 2, 2}));
    planner.apply(plan, decide(plan, 3, 2));
  }
  int num_rejected = 0;
  for (plan = planner.plan(); !plan.sequences[0].draft.empty(); plan = planner.plan()) {
    ASSERT_LT(++num_rejected, 24) << "nothing was learnt";
    planner.apply(plan, decide(plan, 0, 1));
  }
  EXPECT_GT(num_rejected, 4) << "a few decided";
  planner.apply(plan, decide(plan, 0, 1));
  planner.set_draft_len(2);
  EXPECT_EQ(planner.plan().sequences[0].draft.size(), 2u);
}

// ---- backups: n-gram where the draft model's block is missing

PlannerConfig backup_config() {
  PlannerConfig config = async_config();
  config.backup_method = DraftMethod::kNgram;
  return config;
}

Request repeating_request(uint64_t id) {
  Request request = async_request(id, 8, 40);
  request.prompt = {1, 2, 3, 4, 1, 2, 3, 4};
  return request;
}

TEST(Backup, ALateBlockIsReplacedByWhatTheTextSaidBefore) {
  Planner planner(backup_config());
  planner.add(repeating_request(1));
  planner.apply(planner.plan(), RoundDecision{{{.sequence_id = 1, .next_token = 1}}});
  planner.take_draft_request(false);
  const SequenceState seen = planner.draft_state().sequences.at(0);
  EXPECT_EQ(seen.num_at_hand, 0);
  EXPECT_EQ(seen.backup_source, BlockSource::kNgram);
  EXPECT_EQ(seen.backup_len, 3);
  EXPECT_EQ(seen.match_len, 4);

  const SequenceChoice choice = {
      .sequence_id = 1, .draft_len = 2, .wanted_len = 3, .uses_backup = true};
  planner.set_draft_lens({{choice}});
  RoundPlan plan = planner.plan();
  EXPECT_EQ(ids_of(plan.sequences[0].draft), (Tokens{2, 3}));
  EXPECT_EQ(plan.sequences[0].source, BlockSource::kNgram);
  EXPECT_FALSE(plan.awaits_bonus_drafts) << "the draft's next token stands behind other ones";
  const DraftRequest request = planner.take_draft_request(false);
  ASSERT_EQ(request.commits.size(), 1u);
  EXPECT_EQ(request.commits[0].in_flight, 0) << "none of the draft's";
  // What it still sends is no bonus draft; what it prepares may be what comes.
  EXPECT_TRUE(testing::offer(planner, block(1, 1, 9, -1, 0, {7})));
  EXPECT_TRUE(planner.late_draft_tokens(plan).empty());
  EXPECT_TRUE(testing::offer(planner, block(1, 2, 10, 5, 0, {6, 7})));
  EXPECT_FALSE(testing::offer(planner, block(1, 2, 11, 5, 0, {6})))
      << "behind tokens it does not know";
  planner.apply(plan, decide(plan, 0, 5));
  const DraftNews news = planner.take_draft_news();
  const DraftResult& result = news.results.at(0);
  EXPECT_TRUE(result.judged_backup());
  EXPECT_EQ(result.num_drafted, 2);
  EXPECT_EQ(result.counterfactual, false) << "of the draft model's 7";
  EXPECT_EQ(result.num_prepared, 2);
  plan = planner.plan();
  EXPECT_EQ(ids_of(plan.sequences[0].draft), (Tokens{6, 7})) << "as ever, the next time";
  EXPECT_EQ(plan.sequences[0].source, BlockSource::kSpeculationCache);
}

TEST(Backup, IsNotJudgedUnlessItIsChosenAndThenSaysWhatItWouldHaveBeenWorth) {
  Planner planner(backup_config());
  planner.add(repeating_request(1));
  planner.apply(planner.plan(), RoundDecision{{{.sequence_id = 1, .next_token = 1}}});
  for (const int32_t came : {2, 9}) {
    planner.draft_state();
    const RoundPlan plan = planner.plan();
    EXPECT_TRUE(plan.sequences[0].draft.empty());
    planner.take_draft_news();
    planner.apply(plan, decide(plan, 0, came));
    const DraftNews news = planner.take_draft_news();
    EXPECT_FALSE(news.results.at(0).judged_backup());
    EXPECT_EQ(news.results.at(0).backup_counterfactual, came == 2);
  }
}

TEST(Backup, GoesOnWithoutTheDraft) {
  Planner planner(backup_config());
  planner.add(repeating_request(1));
  planner.apply(planner.plan(), RoundDecision{{{.sequence_id = 1, .next_token = 1}}});
  planner.set_draft_available(false);
  EXPECT_EQ(planner.draft_state().sequences.at(0).backup_len, 3);
  const SequenceChoice choice = {.sequence_id = 1, .draft_len = 3, .uses_backup = true};
  planner.set_draft_lens({{choice}});
  const RoundPlan plan = planner.plan();
  EXPECT_EQ(ids_of(plan.sequences[0].draft), (Tokens{2, 3, 4}));
  EXPECT_TRUE(planner.take_draft_request(false).is_empty());
}

TEST(AsyncDrafting, OneMessageARoundAndTheOutcomeIsTheNextBlock) {
  Planner planner(async_config());
  planner.add(async_request(1, 4, 40));
  RoundPlan plan = planner.plan();
  // The draft reads the prompt while the target does, and goes on from its last row.
  DraftRequest request = planner.take_draft_request(false);
  ASSERT_EQ(request.opens.size(), 1u);
  ASSERT_EQ(request.commits.size(), 1u);
  EXPECT_EQ(request.commits[0].round, 0u);
  EXPECT_EQ(request.commits[0].in_flight, 0);
  EXPECT_EQ(request.commits[0].num_tokens_before, 4);
  EXPECT_EQ(request.commits[0].draft_len, 3);
  EXPECT_TRUE(planner.take_draft_request(false).is_empty()) << "told once";
  EXPECT_TRUE(plan.awaits_bonus_drafts);
  EXPECT_TRUE(testing::offer(planner, block(1, 1, 5, 9, 0, {2, 3})));
  EXPECT_TRUE(testing::offer(planner, block(1, 1, 5, 8, 0, {4, 5, 6})));
  EXPECT_FALSE(testing::offer(planner, block(1, 1, 6, 8, 0, {4}))) << "no draft token is in flight";
  planner.apply(plan, decide(plan, 0, 8));
  EXPECT_FALSE(planner.wants_draft());
  EXPECT_TRUE(testing::offer(planner, block(1, 1, 5, 8, 3, {7}))) << "late, behind what came";
  EXPECT_FALSE(testing::offer(planner, block(1, 1, 5, 9, 2, {7}))) << "late, behind what did not";

  plan = planner.plan();
  EXPECT_EQ(ids_of(plan.sequences[0].draft), (Tokens{4, 5, 6}));
  ASSERT_TRUE(plan.sequences[0].bonus_draft.has_value());
  EXPECT_EQ(plan.sequences[0].bonus_draft->token, 7);
  EXPECT_FALSE(plan.awaits_bonus_drafts);
  request = planner.take_draft_request(false);
  ASSERT_EQ(request.commits.size(), 1u);
  EXPECT_EQ(request.commits[0].tokens, (Tokens{8}));
  EXPECT_EQ(request.commits[0].in_flight, 3);
  EXPECT_EQ(request.commits[0].round, 1u);
  EXPECT_TRUE(testing::offer(planner, block(1, 2, 7, 9, 0, {1})));
  EXPECT_FALSE(testing::offer(planner, block(1, 2, 5, 9, 0, {1}))) << "before the text in flight";
  EXPECT_FALSE(testing::offer(planner, block(1, 2, 10, 9, 0, {1})))
      << "behind more than is in flight";
  planner.apply(plan, decide(plan, 1, 10));  // another token than was prepared for
  EXPECT_TRUE(planner.wants_draft());
  const DraftCounters counters = planner.draft_counters();
  EXPECT_EQ(counters.num_lookups, 2u);
  EXPECT_EQ(counters.num_hits, 1u);
  EXPECT_EQ(counters.num_stale_blocks, 4u);
  EXPECT_EQ(counters.num_prepared_tokens, 6u);
  EXPECT_EQ(counters.num_prepared_dropped, 3u);
}

TEST(AsyncDrafting, WhoWaitsSaysSoFirst) {
  Planner planner(async_config());
  planner.add(async_request(1, 4, 40));
  RoundPlan plan = planner.plan();
  planner.take_draft_request(false);
  planner.apply(plan, decide(plan, 0, 8));
  DraftRequest request = planner.take_draft_request(true);
  ASSERT_EQ(request.commits.size(), 1u);
  EXPECT_EQ(request.commits[0].in_flight, -1);
  EXPECT_EQ(request.commits[0].tokens, (Tokens{8}));
  // Tokens come one by one.
  EXPECT_TRUE(testing::offer(planner, block(1, 1, 5, -1, 0, {2})));
  EXPECT_TRUE(planner.wants_draft());
  EXPECT_FALSE(testing::offer(planner, block(1, 1, 5, -1, 0, {2}))) << "twice";
  EXPECT_TRUE(testing::offer(planner, block(1, 1, 5, 8, 1, {3})))
      << "the same text, named as an outcome";
  EXPECT_TRUE(testing::offer(planner, block(1, 1, 5, -1, 2, {}))) << "no more will come";
  EXPECT_FALSE(planner.wants_draft());
  plan = planner.plan();
  EXPECT_EQ(ids_of(plan.sequences[0].draft), (Tokens{2, 3}));
  request = planner.take_draft_request(false);
  ASSERT_EQ(request.commits.size(), 1u);
  EXPECT_EQ(request.commits[0].in_flight, 2);
  EXPECT_EQ(request.commits[0].round, 1u);
  EXPECT_EQ(request.commits[0].num_tokens_before, 5);
  EXPECT_TRUE(request.commits[0].tokens.empty());
}

TEST(AsyncDrafting, LateBonusDrafts) {
  Planner planner(async_config());
  planner.add(async_request(1, 4, 40));
  Request greedy = async_request(2, 4, 40);
  greedy.params.temperature = 0;  // its next token is the target's own choice
  planner.add(std::move(greedy));
  RoundPlan plan = planner.plan();
  EXPECT_TRUE(planner.late_draft_tokens(plan).empty());
  EXPECT_TRUE(testing::offer(planner, block(1, 0, 4, -1, 0, {6})));
  EXPECT_TRUE(testing::offer(planner, block(2, 0, 4, -1, 0, {6})));
  EXPECT_FALSE(testing::offer(planner, block(1, 0, 4, -1, 1, {kVocabSize})));
  const std::vector<LateDraftToken> late = planner.late_draft_tokens(plan);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].sequence_id, 1u);
  EXPECT_EQ(late[0].token.token, 6);
  planner.cancel(1);
  EXPECT_TRUE(planner.late_draft_tokens(plan).empty());
  planner.apply(plan, decide(plan, 0, 3));
}

TEST(AsyncDrafting, NobodyDraftsForWhatIsOff) {
  Planner planner(async_config());
  Request request = async_request(1, 4, 40);
  request.params.async_drafting = AsyncDrafting::kOff;
  planner.add(std::move(request));
  RoundPlan plan = planner.plan();
  EXPECT_FALSE(plan.awaits_bonus_drafts);
  EXPECT_TRUE(planner.take_draft_request(false).commits.empty());
  EXPECT_FALSE(testing::offer(planner, block(1, 1, 5, 8, 0, {4})));
  planner.apply(plan, decide(plan, 0, 8));
  EXPECT_TRUE(planner.wants_draft());
  EXPECT_EQ(planner.take_draft_request(false).commits.at(0).in_flight, -1) << "asked at once";
  EXPECT_FALSE(testing::offer(planner, block(1, 1, 5, 8, 0, {4}))) << "it named no outcome";
  EXPECT_TRUE(testing::offer(planner, block(1, 1, 5, -1, 0, {4})));
  EXPECT_FALSE(testing::offer(planner, block(1, 1, 5, -1, 1, {4}))) << "its blocks come whole";
  EXPECT_FALSE(planner.wants_draft());
}

TEST(AsyncDrafting, ADraftThatWasAwayBeginsAnewAndOldOutcomesAreForgotten) {
  Planner planner(async_config());
  planner.add(async_request(1, 4, 40));
  RoundPlan plan = planner.plan();
  planner.take_draft_request(false);
  ASSERT_TRUE(testing::offer(planner, block(1, 1, 5, 8, 0, {4})));
  planner.set_draft_available(false);
  EXPECT_TRUE(planner.late_draft_tokens(plan).empty());
  planner.set_draft_available(true);  // while the round runs
  EXPECT_FALSE(testing::offer(planner, block(1, 1, 5, 8, 0, {4})));
  planner.apply(plan, decide(plan, 0, 8));
  EXPECT_TRUE(planner.wants_draft());
  EXPECT_EQ(planner.draft_counters().num_lookups, 0u);
  const DraftRequest request = planner.take_draft_request(true);
  ASSERT_EQ(request.opens.size(), 1u);
  EXPECT_EQ(request.opens[0].tokens.size(), 5u);
  EXPECT_EQ(request.commits.at(0).in_flight, -1);
}

// Everything that was offered, kept by key; what is at hand is put together when it is asked for.
class Reference {
 public:
  struct Sequence {
    bool async = true;
    Tokens text;
    uint32_t round = 0;
    int32_t in_flight = -1;
    std::vector<DraftToken> at_hand;
    bool ended = false;
    std::map<std::tuple<int32_t, int32_t>, std::vector<DraftToken>> prepared;
  };

  void offer(const DraftBlock& block) {
    const auto found = sequences.find(block.sequence_id);
    if (found == sequences.end()) return;
    Sequence& sequence = found->second;
    const auto len = static_cast<int32_t>(sequence.text.size());
    if (block.round == sequence.round) {
      const bool same_text =
          block.guess == -1 || (sequence.async && block.guess == sequence.text.back());
      const auto most = static_cast<size_t>(sequence.async ? 4 : 3);
      const auto size = static_cast<int32_t>(sequence.at_hand.size());
      if (block.base_len != len || !same_text || sequence.ended || block.first != size) return;
      if (sequence.at_hand.size() + block.tokens.size() > most) return;
      if (!std::all_of(block.tokens.begin(), block.tokens.end(), is_good)) return;
      for (const DraftToken& token : block.tokens) sequence.at_hand.push_back(token);
      sequence.ended = !sequence.async || block.tokens.empty();
      return;
    }
    if (block.round != sequence.round + 1 || !sequence.async || sequence.in_flight < 0) return;
    if (block.guess < 0 || block.base_len <= len) return;
    if (block.base_len > len + 1 + sequence.in_flight || block.tokens.empty()) return;
    std::vector<DraftToken>& kept = sequence.prepared[{block.base_len, block.guess}];
    if (block.first != static_cast<int32_t>(kept.size())) return;
    kept.insert(kept.end(), block.tokens.begin(), block.tokens.end());
  }

  // Returns whether the next block was prepared.
  bool commit(Sequence& sequence, const Tokens& tokens) {
    sequence.text.insert(sequence.text.end(), tokens.begin(), tokens.end());
    ++sequence.round;
    sequence.in_flight = -1;
    sequence.ended = false;
    sequence.at_hand =
        sequence.prepared[{static_cast<int32_t>(sequence.text.size()), sequence.text.back()}];
    sequence.prepared.clear();
    const auto bad = std::find_if_not(sequence.at_hand.begin(), sequence.at_hand.end(), is_good);
    sequence.at_hand.erase(bad, sequence.at_hand.end());
    if (sequence.at_hand.size() > 4) sequence.at_hand.resize(4);
    return !sequence.at_hand.empty();
  }

  static bool is_good(const DraftToken& token) { return valid_draft(token, kVocabSize); }

  std::map<uint64_t, Sequence> sequences;
};

class RandomStreams {
 public:
  explicit RandomStreams(uint32_t seed) : random_(seed), planner_(config()) {}

  void run() {
    for (int step = 0; step < 120; ++step) {
      if (reference_.sequences.size() < 4 && below(3) == 0) arrive();
      stream(below(4));
      if (below(20) == 0) cancel();
      RoundPlan plan = planner_.plan();
      if (plan.sequences.empty()) continue;
      check(plan);
      planner_.take_draft_request(below(2) == 0);
      stream(below(12));
      check_late(plan);
      if (below(20) == 0) cancel();
      const RoundDecision decision = decide(plan);
      planner_.apply(plan, decision);
      commit(plan, decision);
      ASSERT_EQ(planner_.fault(), "");
    }
    EXPECT_EQ(planner_.draft_counters().num_hits, num_hits);
  }

  uint64_t num_hits = 0;
  int num_drafted = 0;
  int num_bonus_drafts = 0;
  int num_late = 0;
  uint64_t num_preemptions() const { return planner_.counters().num_preemptions; }
  uint64_t num_stale() const { return planner_.draft_counters().num_stale_blocks; }

 private:
  // Little memory, so that sequences are thrown out and come back.
  static PlannerConfig config() {
    PlannerConfig config = async_config();
    config.num_blocks = 17;
    return config;
  }
  int32_t below(int limit) { return static_cast<int32_t>(random_() % limit); }

  void arrive() {
    Request request = async_request(next_id_++, below(6) + 1, 50);
    if (below(4) == 0) request.params.async_drafting = AsyncDrafting::kOff;
    Reference::Sequence sequence;
    sequence.async = request.params.async_drafting != AsyncDrafting::kOff;
    sequence.text = request.prompt;
    reference_.sequences[request.id] = sequence;
    planner_.add(std::move(request));
  }

  void cancel() {
    if (reference_.sequences.empty()) return;
    const uint64_t id = reference_.sequences.begin()->first;
    planner_.cancel(id);
    reference_.sequences.erase(id);
  }

  DraftToken random_token() {
    if (below(12) == 0) return {kVocabSize, {}};
    if (below(12) == 0) return {1, {{1, 0.5f}}};
    return {below(kVocabSize), {}};
  }

  void stream(int num_blocks) {
    for (; num_blocks > 0; --num_blocks) {
      const uint64_t id = static_cast<uint64_t>(below(static_cast<int>(next_id_)) + 1);
      const auto found = reference_.sequences.find(id);
      if (found == reference_.sequences.end()) {
        EXPECT_FALSE(testing::offer(planner_, DraftBlock{id, 1, 5, {{1, {}}}, -1, 0}));
        continue;
      }
      const DraftBlock block = random_block(id, found->second);
      testing::offer(planner_, block);
      reference_.offer(block);
    }
  }

  DraftBlock random_block(uint64_t id, const Reference::Sequence& sequence) {
    DraftBlock block;
    block.sequence_id = id;
    block.round = sequence.round;
    block.base_len = static_cast<int32_t>(sequence.text.size());
    size_t size = sequence.at_hand.size();
    if (below(3) == 0) block.guess = sequence.text.back();
    if (sequence.in_flight >= 0 && below(4) > 0) {
      ++block.round;
      block.base_len += 1 + below(sequence.in_flight + 1);
      block.guess = below(3);
      const auto kept = sequence.prepared.find({block.base_len, block.guess});
      size = kept == sequence.prepared.end() ? 0 : kept->second.size();
    }
    block.first = static_cast<int32_t>(size);
    for (int i = below(4); i > 0; --i) block.tokens.push_back(random_token());
    if (below(10) == 0) block.first += below(3) - 1;
    if (below(10) == 0) block.round += static_cast<uint32_t>(below(3) - 1);
    if (below(10) == 0) block.base_len += below(3) - 1;
    if (below(10) == 0) block.guess = below(4) - 2;
    return block;
  }

  void check(const RoundPlan& plan) {
    for (const SequencePlan& rows : plan.sequences) {
      Reference::Sequence& sequence = reference_.sequences.at(rows.sequence_id);
      ASSERT_EQ(rows.round, sequence.round);
      const int32_t end = rows.first_position + rows.num_committed_rows;
      if (end < static_cast<int32_t>(sequence.text.size())) {
        ASSERT_TRUE(rows.draft.empty() && !rows.bonus_draft);
        continue;
      }
      ASSERT_LE(rows.draft.size(), sequence.at_hand.size());
      ASSERT_TRUE(std::equal(rows.draft.begin(), rows.draft.end(), sequence.at_hand.begin()));
      num_drafted += static_cast<int>(rows.draft.size());
      const bool has_more = sequence.at_hand.size() > rows.draft.size();
      if (rows.bonus_draft) {
        ASSERT_TRUE(sequence.async && has_more);
        ASSERT_EQ(*rows.bonus_draft, sequence.at_hand[rows.draft.size()]);
        ++num_bonus_drafts;
      }
      if (sequence.async) {
        sequence.in_flight = static_cast<int32_t>(rows.draft.size());
        ASSERT_TRUE(rows.bonus_draft.has_value() || !has_more || near_end(sequence));
        ASSERT_TRUE(plan.awaits_bonus_drafts || rows.bonus_draft || near_end(sequence));
      }
    }
  }
  // Of 50 tokens more than the prompt: so near the end of the text nothing is told or awaited.
  static bool near_end(const Reference::Sequence& sequence) { return sequence.text.size() > 46; }

  void check_late(const RoundPlan& plan) {
    for (const LateDraftToken& late : planner_.late_draft_tokens(plan)) {
      const Reference::Sequence& sequence = reference_.sequences.at(late.sequence_id);
      ASSERT_TRUE(sequence.async);
      ASSERT_EQ(late.token, sequence.at_hand.at(static_cast<size_t>(sequence.in_flight)));
      ++num_late;
    }
  }

  RoundDecision decide(const RoundPlan& plan) {
    RoundDecision decision;
    for (const SequencePlan& rows : plan.sequences) {
      SequenceDecision& made = decision.sequences.emplace_back();
      made.sequence_id = rows.sequence_id;
      made.num_accepted = below(static_cast<int>(rows.draft.size()) + 1);
      made.next_token = below(3);
    }
    return decision;
  }

  void commit(const RoundPlan& plan, const RoundDecision& decision) {
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const SequencePlan& rows = plan.sequences[i];
      const auto found = reference_.sequences.find(rows.sequence_id);
      if (found == reference_.sequences.end()) continue;
      Reference::Sequence& sequence = found->second;
      const int32_t end = rows.first_position + rows.num_committed_rows;
      if (end < static_cast<int32_t>(sequence.text.size())) continue;
      Tokens tokens = ids_of(rows.draft);
      tokens.resize(static_cast<size_t>(decision.sequences[i].num_accepted));
      tokens.push_back(decision.sequences[i].next_token);
      const bool hit = reference_.commit(sequence, tokens);
      if (hit && sequence.async && sequence.text.size() < 45) ++num_hits;
      // Before it ends, where lengths are cut.
      if (sequence.text.size() < 45) continue;
      planner_.cancel(rows.sequence_id);
      if (hit && sequence.async) ++num_hits;
      reference_.sequences.erase(found);
    }
  }

  std::mt19937 random_;
  Planner planner_;
  Reference reference_;
  uint64_t next_id_ = 1;
};

TEST(AsyncDrafting, RandomStreamsLikeAReferenceThatKeepsAll) {
  uint64_t num_hits = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_stale = 0;
  int num_drafted = 0;
  int num_bonus_drafts = 0;
  int num_late = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    RandomStreams streams(seed);
    streams.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    num_hits += streams.num_hits;
    num_preemptions += streams.num_preemptions();
    num_stale += streams.num_stale();
    num_drafted += streams.num_drafted;
    num_bonus_drafts += streams.num_bonus_drafts;
    num_late += streams.num_late;
  }
  EXPECT_GT(num_hits, 1000u);
  EXPECT_GT(num_preemptions, 100u);
  EXPECT_GT(num_stale, 1000u);
  EXPECT_GT(num_drafted, 1000);
  EXPECT_GT(num_bonus_drafts, 300);
  EXPECT_GT(num_late, 300);
}

}  // namespace
}  // namespace outrider
