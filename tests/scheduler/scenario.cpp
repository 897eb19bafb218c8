// See scenario.h.
#include "tests/scheduler/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <tuple>

#include "tests/scheduler/packed.h"

namespace outrider::testing {
namespace {

struct Story {
  Request request;
  bool cancelled = false;
  bool failed = false;
  bool over = false;
  std::vector<int32_t> text;
  std::vector<TokenLogprobs> prompt_scores;
  ResultEvent last;
};

class Play {
 public:
  explicit Play(const Scenario& scenario)
      : scenario_(scenario),
        random_(scenario.seed),
        planner_(scenario.planner),
        target_(scenario.model, scenario.planner, scenario.sabotage),
        draft_(scenario.model, scenario.mood, scenario.seed + 1) {}

  Outcome run();

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<uint32_t>(limit)); }
  bool chance(int percent) { return below(100) < percent; }
  void fault(const std::string& what) { outcome_.faults.push_back(what); }
  void note(uint64_t value) {
    outcome_.plans_digest = (outcome_.plans_digest ^ value) * 0x100000001B3ull + 0x9E37ull;
  }

  void arrive();
  void disturb();
  void talk_to_draft(bool asks);
  void keep(const DraftBlock& block);
  void take_late_draft_tokens(RoundPlan& plan);
  void play_round();
  void record_plan(const RoundPlan& plan);
  void check_drafts(const RoundPlan& plan);
  void check_progress(const RoundPlan& plan);
  void collect();
  void take(Story& story, ResultEvent event);
  void check_text(const Story& story);
  void check_end();

  const Scenario& scenario_;
  std::mt19937 random_;
  Planner planner_;
  uint64_t num_rounds_ = 0;
  FakeTarget target_;
  FakeDraft draft_;
  std::map<uint64_t, Story> stories_;
  // What the planner took, by sequence, round, length and last token of the text it stands behind.
  using Place = std::tuple<uint64_t, uint32_t, int32_t, int32_t>;
  std::map<Place, std::vector<DraftToken>> offered_;
  uint64_t num_rows_needed_ = 0;
  bool draft_up_ = true;
  Outcome outcome_;
};

void Play::arrive() {
  const uint64_t id = stories_.size() + 1;
  Request request;
  request.id = id;
  const int32_t max_prompt = std::max(1, scenario_.planner.max_model_len / 2);
  const int prompt_len = below(max_prompt) + 1;
  if (!stories_.empty() && chance(scenario_.shared_prompt_percent)) {
    const auto earlier = stories_.find(static_cast<uint64_t>(below(static_cast<int>(id) - 1)) + 1);
    request.prompt = earlier->second.request.prompt;
    const std::vector<int32_t>& text = earlier->second.text;
    request.prompt.insert(request.prompt.end(), text.begin(), text.end());
    request.prompt.resize(std::min(request.prompt.size(), static_cast<size_t>(prompt_len)));
  }
  while (static_cast<int>(request.prompt.size()) < prompt_len)
    request.prompt.push_back(below(scenario_.model.vocab_size));
  SamplingParams& params = request.params;
  params.max_tokens =
      below(scenario_.planner.max_model_len - static_cast<int>(request.prompt.size()) + 1);
  if (chance(40)) params.stop_token_ids = {2, 5};
  if (chance(30)) params.min_tokens = below(params.max_tokens + 1);
  if (chance(30)) params.max_draft_len = below(4);
  if (chance(30)) params.num_logprobs = below(3);
  const AsyncDrafting ways[] = {AsyncDrafting::kOff, AsyncDrafting::kChain, AsyncDrafting::kCache};
  params.async_drafting = ways[below(3)];
  params.prompt_logprobs = chance(30);
  if (scenario_.priorities) request.priority = below(3) - 1;
  request.stream = std::make_shared<ResultStream>();
  if (!planner_.refusal(request).empty()) {
    params.max_tokens = 1;
    request.prompt.resize(1);
  }
  num_rows_needed_ += request.prompt.size() + static_cast<uint64_t>(params.max_tokens);
  stories_[id].request = request;
  planner_.add(request);
}

void Play::disturb() {
  if (!stories_.empty() && chance(scenario_.cancel_percent)) {
    const uint64_t id = static_cast<uint64_t>(below(static_cast<int>(stories_.size()))) + 1;
    stories_[id].cancelled = true;
    planner_.cancel(id);
  }
  if (chance(scenario_.draft_flips_percent)) {
    draft_up_ = !draft_up_;
    if (draft_up_) draft_.restart();
    planner_.set_draft_available(draft_up_);
    if (!draft_up_ && planner_.wants_draft()) fault("waits for a draft that is gone");
  }
}

void Play::talk_to_draft(bool asks) {
  const DraftRequest request = planner_.take_draft_request(asks);
  if (!draft_up_ && !request.is_empty()) fault("talks to a draft that is gone");
  for (const DraftBlock& block : draft_.answer(request)) {
    if (testing::offer(planner_, block)) keep(block);
  }
}

void Play::keep(const DraftBlock& block) {
  const Story& story = stories_.at(block.sequence_id);
  int32_t last = block.guess;
  if (last < 0) last = story.text.empty() ? story.request.prompt.back() : story.text.back();
  std::vector<DraftToken>& tokens =
      offered_[{block.sequence_id, block.round, block.base_len, last}];
  tokens.resize(static_cast<size_t>(block.first));
  tokens.insert(tokens.end(), block.tokens.begin(), block.tokens.end());
}

// Those that the draft makes while the ranks compute, as rank 0 hands them on.
void Play::take_late_draft_tokens(RoundPlan& plan) {
  auto rows = plan.sequences.begin();
  for (LateDraftToken& late : planner_.late_draft_tokens(plan)) {
    while (rows != plan.sequences.end() && rows->sequence_id != late.sequence_id) ++rows;
    if (rows == plan.sequences.end()) return fault("late draft tokens out of the plan's order");
    if (rows->bonus_draft || !plan.awaits_bonus_drafts)
      fault("a late draft token that nobody awaits");
    rows->bonus_draft = std::move(late.token);
  }
}

void Play::record_plan(const RoundPlan& plan) {
  note(plan.round);
  for (const SequencePlan& rows : plan.sequences) {
    note(rows.sequence_id);
    note(static_cast<uint64_t>(rows.first_position * 4096 + rows.num_committed_rows));
    note(rows.replace_blocks ? 1 : 0);
    for (int32_t block : rows.new_blocks) note(static_cast<uint64_t>(block));
    for (const DraftToken& token : rows.draft) note(static_cast<uint64_t>(token.token));
  }
}

// With equal priorities the oldest request runs in every round.
void Play::check_progress(const RoundPlan& plan) {
  if (scenario_.priorities) return;
  for (const auto& [id, story] : stories_) {
    if (story.over || story.cancelled) continue;
    if (std::ranges::count(plan.sequences, id, &SequencePlan::sequence_id) == 0)
      fault(fmt::format("round {}: the oldest, {}, does not run", plan.round, id));
    return;
  }
}

// A block is for one round and one text only: verified again elsewhere, its tokens would not be
// independent draws from its distribution.
void Play::check_drafts(const RoundPlan& plan) {
  if (scenario_.planner.draft_method == DraftMethod::kNgram) return;
  for (const SequencePlan& rows : plan.sequences) {
    std::vector<DraftToken> used = rows.draft;
    if (rows.bonus_draft) used.push_back(*rows.bonus_draft);
    if (used.empty()) continue;
    const Story& story = stories_.at(rows.sequence_id);
    const int32_t last = story.text.empty() ? story.request.prompt.back() : story.text.back();
    const std::vector<DraftToken>& block = offered_[{
        rows.sequence_id, rows.round, rows.first_position + rows.num_committed_rows, last}];
    if (block.size() < used.size() || !std::equal(used.begin(), used.end(), block.begin()))
      fault(fmt::format("sequence {} verifies a draft made for another round", rows.sequence_id));
    if (rows.bonus_draft && story.request.params.async_drafting == AsyncDrafting::kOff)
      fault(fmt::format("sequence {} has a bonus draft token and does not draft asynchronously",
                        rows.sequence_id));
  }
}

void Play::play_round() {
  RoundPlan plan = planner_.plan();
  plan.round = num_rounds_++;  // as the coordinator does
  if (plan.sequences.empty() != planner_.idle()) fault("empty plan while there is work");
  if (plan.sequences.empty()) return;
  record_plan(plan);
  check_progress(plan);
  talk_to_draft(false);
  take_late_draft_tokens(plan);
  check_drafts(plan);
  std::vector<uint64_t> poisoned;
  if (chance(scenario_.fail_percent)) {
    poisoned.push_back(
        plan.sequences[static_cast<size_t>(below(static_cast<int>(plan.sequences.size())))]
            .sequence_id);
    stories_[poisoned[0]].failed = true;
  }
  const RoundDecision decision = target_.execute(plan, poisoned);
  if (!target_.faults().empty()) return;  // the decision means nothing
  if (chance(20)) disturb();              // while the ranks compute
  planner_.apply(plan, decision);
  for (const SequenceDecision& made : decision.sequences) {
    if (made.next_token < 0 && !made.failed) ++outcome_.num_chunks;
  }
  ++outcome_.num_rounds;
}

void Play::take(Story& story, ResultEvent event) {
  if (story.over) fault(fmt::format("request {} goes on after its end", story.request.id));
  if (event.origins.size() != event.tokens.size()) fault("an origin for each token");
  const size_t num_logprobs = story.request.params.num_logprobs >= 0 ? event.tokens.size() : 0;
  if (event.logprobs.size() != num_logprobs) fault("log-probabilities for each token");
  for (size_t i = 0; i < event.logprobs.size(); ++i) {
    if (event.logprobs[i].rank != event.tokens[i]) fault("log-probability of another token");
  }
  if (!event.prompt_logprobs.empty() && (!story.text.empty() || !story.prompt_scores.empty())) {
    fault("prompt scores not with the first event");
  }
  for (const TokenLogprobs& score : event.prompt_logprobs) story.prompt_scores.push_back(score);
  for (int32_t token : event.tokens) {
    story.text.push_back(token);
    note(static_cast<uint64_t>(token));
  }
  story.over = event.finish_reason != FinishReason::kNone;
  story.last = std::move(event);
  if (story.over) check_text(story);
}

void Play::check_text(const Story& story) {
  const uint64_t id = story.request.id;
  const ExpectedText expected = expected_text(scenario_.model, story.request);
  outcome_.num_tokens += story.text.size();
  outcome_.num_draft_tokens += static_cast<uint64_t>(story.last.stats.num_draft_tokens);
  outcome_.num_accepted += static_cast<uint64_t>(story.last.stats.num_accepted_tokens);
  outcome_.num_bonus_drafts += static_cast<uint64_t>(story.last.stats.num_bonus_drafts);
  outcome_.num_accepted_bonus_drafts +=
      static_cast<uint64_t>(story.last.stats.num_accepted_bonus_drafts);
  const size_t num_common = std::min(story.text.size(), expected.tokens.size());
  if (!std::equal(story.text.begin(),
                  story.text.begin() + static_cast<std::ptrdiff_t>(num_common),
                  expected.tokens.begin()) ||
      story.text.size() > expected.tokens.size()) {
    fault(fmt::format("request {} wrote another text", id));
  }
  const FinishReason reason = story.last.finish_reason;
  if (reason == FinishReason::kAborted) {
    if (!story.cancelled) fault(fmt::format("request {} aborted, nobody cancelled it", id));
    ++outcome_.num_cancelled;
    return;
  }
  if (reason == FinishReason::kError) {
    if (!story.failed) fault(fmt::format("request {} failed: {}", id, story.last.error));
    ++outcome_.num_failed;
    return;
  }
  if (reason != expected.reason || story.last.stop_token != expected.stop_token ||
      story.text.size() != expected.tokens.size()) {
    fault(fmt::format("request {} ended for another reason", id));
  }
  if (reason == FinishReason::kStop) ++outcome_.num_stops;
  const size_t num_scores =
      story.request.params.prompt_logprobs ? story.request.prompt.size() - 1 : 0;
  bool scores_right = story.prompt_scores.size() == num_scores;
  for (size_t i = 0; scores_right && i < num_scores; ++i) {
    scores_right = story.prompt_scores[i].rank == static_cast<int32_t>(i) + 1;
  }
  if (!scores_right) fault(fmt::format("request {} has wrong prompt scores", id));
}

void Play::collect() {
  for (auto& [id, story] : stories_) {
    while (auto event = story.request.stream->wait_next(std::chrono::milliseconds(0))) {
      take(story, std::move(*event));
    }
  }
  const std::string wrong = planner_.fault();
  if (!wrong.empty()) fault(wrong);
}

void Play::check_end() {
  for (const std::string& what : target_.faults()) fault(what);
  for (const std::string& what : draft_.faults()) fault(what);
  if (!outcome_.faults.empty()) return;
  for (const auto& [id, story] : stories_) {
    if (!story.over) fault(fmt::format("request {} never ends", id));
  }
  const PlannerCounters counters = planner_.counters();
  if (counters.num_free_blocks != scenario_.planner.num_blocks)
    fault("blocks are missing at the end");
  if (counters.num_running + counters.num_waiting != 0) fault("sequences are left at the end");
  outcome_.num_preemptions = counters.num_preemptions;
  outcome_.num_reused = counters.num_prefix_hits;
  outcome_.num_lookups = planner_.draft_counters().num_lookups;
  outcome_.num_hits = planner_.draft_counters().num_hits;
  outcome_.num_emptied = target_.num_emptied();
  if (counters.num_preemptions > 0 &&
      scenario_.planner.capacity_policy == CapacityPolicy::kGuaranteedNoEvict) {
    fault("preempts what may not be preempted");
  }
  if (counters.num_prefix_hits > counters.num_prefix_queries) fault("more hits than queries");
  if (!scenario_.planner.enable_prefix_caching && counters.num_prefix_queries > 0) {
    fault("prefixes are reused though that is off");
  }
  // One more request tells ranks and draft about all that ended before.
  if (draft_up_) draft_.answer(planner_.take_draft_request());
  if (draft_up_ && draft_.num_known() > 0) fault("the draft still holds sequences");
  arrive();
  stories_.rbegin()->second.request.params.max_tokens = 1;
  const RoundPlan plan = planner_.plan();
  if (!plan.sequences.empty()) {
    target_.execute(plan);
    if (target_.num_known() != 1) fault("the ranks still hold sequences that ended");
    for (const std::string& what : target_.faults()) fault(what);
  }
}

Outcome Play::run() {
  const uint64_t num_requests = static_cast<uint64_t>(scenario_.num_requests);
  while (stories_.size() < num_requests || !planner_.idle()) {
    while (stories_.size() < num_requests && (planner_.idle() || chance(scenario_.arrival_percent)))
      arrive();
    disturb();
    talk_to_draft(chance(80));
    collect();
    play_round();
    collect();
    if (!outcome_.faults.empty() || !target_.faults().empty()) break;
    if (outcome_.num_rounds > 4 * num_rows_needed_ + 10) {
      fault("no end in sight");
      break;
    }
  }
  collect();
  check_end();
  return outcome_;
}

}  // namespace

Scenario random_scenario(uint32_t seed) {
  std::mt19937 random(seed * 2654435761u + 17u);
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<uint32_t>(limit));
  };
  Scenario scenario;
  PlannerConfig& config = scenario.planner;
  config.block_size = below(5) + 1;
  config.max_model_len = below(40) + 4;
  const int32_t num_blocks_alone =
      (config.max_model_len + config.block_size - 1) / config.block_size;
  config.num_blocks = num_blocks_alone + below(2 * num_blocks_alone);
  config.max_num_seqs = below(8) + 1;
  config.max_num_batched_tokens = below(4) == 0 ? below(4) + 1 : below(40) + 1;
  config.vocab_size = scenario.model.vocab_size;
  config.draft_method = static_cast<DraftMethod>(below(3));
  config.num_speculative_tokens = below(7);
  config.prompt_lookup_min = below(2) + 1;
  config.prompt_lookup_max = config.prompt_lookup_min + below(3);
  scenario.model.short_memory = below(2) == 0;
  scenario.mood = static_cast<DraftMood>(below(5));
  scenario.num_requests = below(12) + 1;
  scenario.arrival_percent = below(90) + 5;
  if (below(3) == 0) scenario.cancel_percent = below(20);
  if (below(4) == 0) scenario.fail_percent = below(20);
  if (below(3) == 0) scenario.draft_flips_percent = below(10);
  scenario.priorities = below(3) == 0;
  config.enable_prefix_caching = below(4) != 0;
  if (below(2) == 0) scenario.shared_prompt_percent = below(100);
  scenario.seed = random();
  const int32_t agings[] = {0, 1, 4, 256};
  config.priority_aging_rounds = agings[below(4)];
  if (below(4) == 0) config.capacity_policy = CapacityPolicy::kGuaranteedNoEvict;
  config.reports_freed_blocks = below(2) == 0;
  return scenario;
}

Outcome run_scenario(const Scenario& scenario) { return Play(scenario).run(); }

}  // namespace outrider::testing
