// See clients.h.
#include "tests/simulation/clients.h"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/verification/rules.h"

namespace outrider::test {
namespace {

constexpr size_t kMostEarlier = 16;
constexpr int32_t kSpoiledOutput = 2;  // the token whose logits get the NaN

bool is_text_given(const SamplingParams& params) {
  const VerifyRule rule = resolve_rule(params);
  return rule == VerifyRule::kGreedy || rule == VerifyRule::kCoupled;
}

ModelOptions sizes_of_one(const Setting& setting) {
  return {.block_size = 8,
          .num_blocks = setting.planner.max_model_len / 8 + 2,
          .max_rows = setting.planner.max_model_len,
          .max_logit_rows = setting.planner.max_model_len};
}

ToyModel::Options costless(const Setting& setting) {
  ToyModel::Options options = setting.target;
  options.step_ns = options.row_ns = options.jitter_ns = 0;
  options.clears_blocks = true;
  if (setting.sabotage == Sabotage::kOtherText) ++options.law.seed;
  return options;
}

}  // namespace

Reference::Reference(const Setting& setting)
    : setting_(setting),
      group_(make_solo_group()),
      model_(costless(setting), 0, 1, sizes_of_one(setting)),
      target_(model_, *group_) {}

Reference::Text Reference::write(const Request& request) {
  const SamplingParams& params = request.params;
  RoundPlan plan;
  if (last_id_ > 0) plan.ends = {last_id_};
  last_id_ = request.id;
  auto num_output = static_cast<int32_t>(request.resumed.size());
  SequenceStart start{request.id, params, request.prompt, num_output};
  start.tokens.insert(start.tokens.end(), request.resumed.begin(), request.resumed.end());
  start.params.prompt_logprobs = false;
  SequencePlan rows{.sequence_id = request.id,
                    .num_committed_rows = static_cast<int32_t>(start.tokens.size()),
                    .replace_blocks = true};
  for (int32_t block = 0; block < model_.options().num_blocks; ++block)
    rows.new_blocks.push_back(block);
  auto num_tokens = static_cast<int32_t>(start.tokens.size());
  plan.starts.push_back(std::move(start));
  Text text;
  while (true) {
    plan.sequences = {rows};
    const SequenceDecision made = target_.execute(std::move(plan)).sequences.at(0);
    const std::vector<int32_t>& stops = params.stop_token_ids;
    const bool stops_now = std::ranges::find(stops, made.next_token) != stops.end();
    if (stops_now && num_output >= params.min_tokens) {
      text.reason = FinishReason::kStop;
      return text;
    }
    text.tokens.push_back(made.next_token);
    ++num_output;
    ++num_tokens;
    if (num_output >= params.max_tokens || num_tokens >= setting_.planner.max_model_len)
      return text;
    plan = {};
    rows = {.sequence_id = request.id,
            .round = rows.round + 1,
            .first_position = num_tokens - 1,
            .num_committed_rows = 1};
  }
}

Clients::Clients(const Setting& setting, Witness& witness, bool knows_text)
    : setting_(setting),
      witness_(witness),
      knows_text_(knows_text),
      dice_(mix_seed(setting.seed, 0xC11E)),
      spoiling_(mix_seed(setting.seed, 0xBAD)),
      reference_(setting) {
  spoiled_.push_back(false);
  for (int32_t i = 0; i < setting.clients.num_requests; ++i)
    spoiled_.push_back(spoiling_.chance(setting.clients.spoiled));
}

std::string Clients::spoiling() const {
  std::string text;
  for (size_t id = 1; id < spoiled_.size(); ++id) {
    if (!spoiled_[id]) continue;
    text += fmt::format(
        "{}nan_logits:sequence={},output={}", text.empty() ? "" : ";", id, kSpoiledOutput);
  }
  return text;
}

bool Clients::act(Engine& engine) {
  std::erase_if(open_, [&](Story& story) { return read(story); });
  if (dice_.chance(setting_.clients.cancels)) cancel_one(engine);
  const int32_t num_requests = setting_.clients.num_requests;
  while (num_submitted_ < num_requests && dice_.chance(setting_.clients.arrivals)) submit(engine);
  return num_submitted_ < num_requests || !open_.empty();
}

bool Clients::act_idle(Engine& engine) {
  if (!act(engine)) return false;
  if (open_.empty()) submit(engine);
  return true;
}

void Clients::cancel_one(Engine& engine) {
  if (open_.empty()) return;
  Story& story = open_[dice_.bits() % open_.size()];
  if (story.is_cancelled) return;
  story.is_cancelled = true;
  witness_.note_cancelled(story.request.id);
  engine.cancel(story.request.id);
}

std::vector<int32_t> Clients::some_prompt() {
  const int32_t size = dice_.between(1, std::max(1, setting_.planner.max_model_len * 2 / 3));
  std::vector<int32_t> prompt;
  if (!earlier_.empty() && dice_.chance(setting_.clients.shared_beginnings)) {
    prompt = earlier_[dice_.bits() % earlier_.size()];
    prompt.resize(std::min(prompt.size(), static_cast<size_t>(size)));
  }
  while (std::ssize(prompt) < size) prompt.push_back(dice_.below(ToyLaw::kVocabSize));
  return prompt;
}

void Clients::vary(SamplingParams& params) {
  const VerifyMode modes[] = {
      VerifyMode::kAuto, VerifyMode::kCoupled, VerifyMode::kStandard, VerifyMode::kBlock};
  const int32_t kind = dice_.below(5);
  params.temperature = kind < 2 ? 0.0f : 0.5f + 0.1f * static_cast<float>(dice_.below(8));
  params.noise_seed = dice_.bits();
  if (kind == 2) params.seed = params.noise_seed;
  params.verify_mode = modes[dice_.below(params.seed ? 2 : 4)];
  if (dice_.chance(300)) {
    const int32_t step = dice_.between(3, 12);
    for (int32_t id = dice_.below(step); id < ToyLaw::kVocabSize; id += step)
      params.stop_token_ids.push_back(id);
    params.min_tokens = dice_.chance(500) ? 0 : dice_.below(params.max_tokens + 1);
  }
  if (params.min_tokens > 0 && params.stop_token_ids.size() > 8) params.min_tokens = 0;
  const int32_t extra = dice_.below(24);
  if (extra == 0) params.top_k = dice_.between(1, 3);
  if (extra == 1) params.top_p = 0.7f;
  if (extra == 2) params.min_p = 0.2f;
  if (extra == 3) params.repetition_penalty = 1.2f;
  if (extra == 4) params.presence_penalty = 0.5f, params.frequency_penalty = 0.2f;
  if (extra == 5) params.num_logprobs = dice_.below(3);
  if (extra == 6) params.prompt_logprobs = true;
  if (dice_.chance(300)) params.max_draft_len = dice_.below(6);
  params.fixed_draft_len = dice_.chance(300);
  params.async_drafting = static_cast<AsyncDrafting>(dice_.below(4));
}

void Clients::submit(Engine& engine) {
  Story story;
  Request& request = story.request;
  request.id = static_cast<uint64_t>(++num_submitted_);
  request.prompt = some_prompt();
  const auto num_prompt = static_cast<int32_t>(request.prompt.size());
  request.params.max_tokens =
      dice_.between(1, std::max(1, setting_.planner.max_model_len - num_prompt));
  vary(request.params);
  if (request.params.max_tokens > 2 && !request.params.prompt_logprobs && dice_.chance(100)) {
    for (int32_t i = dice_.between(1, request.params.max_tokens - 1); i > 0; --i)
      request.resumed.push_back(dice_.below(ToyLaw::kVocabSize));
  }
  if (setting_.clients.priorities) request.priority = dice_.below(3) - 1;
  request.stream = std::make_shared<ResultStream>();
  num_rows_needed_ += num_prompt + request.params.max_tokens;
  witness_.note_submitted(request);
  const AdmissionResult result = engine.submit(request);
  if (result.admission == Admission::kAccepted) return open_.push_back(std::move(story));
  witness_.note_over(request.id);
  if (!is_stopped_)
    witness_.fault(fmt::format("request {} was refused: {}", request.id, result.reason));
}

bool Clients::read(Story& story) {
  while (auto event = story.request.stream->wait_next(std::chrono::milliseconds(0))) {
    if (setting_.sabotage == Sabotage::kLostEvent && event->finish_reason == FinishReason::kNone &&
        story.request.id % 8 == 3 && ++story.num_events == 2)
      continue;
    take(story, *event);
    if (event->finish_reason == FinishReason::kNone) continue;
    check(story, *event);
    if (story.request.stream->wait_next(std::chrono::milliseconds(0)))
      witness_.fault(fmt::format("request {} goes on after its end", story.request.id));
    witness_.note_over(story.request.id);
    std::vector<int32_t> text = story.request.prompt;
    text.insert(text.end(), story.text.begin(), story.text.end());
    if (earlier_.size() < kMostEarlier) earlier_.push_back(text);
    earlier_[story.request.id % earlier_.size()] = std::move(text);
    return true;
  }
  return false;
}

void Clients::take(Story& story, const ResultEvent& event) {
  const uint64_t id = story.request.id;
  if (event.origins.size() != event.tokens.size())
    witness_.fault(fmt::format("request {} has no origin for each token", id));
  const size_t num_logprobs = story.request.params.num_logprobs >= 0 ? event.tokens.size() : 0;
  if (event.logprobs.size() != num_logprobs)
    witness_.fault(fmt::format("request {} has no log-probabilities for each token", id));
  story.num_prompt_scores += event.prompt_logprobs.size();
  story.text.insert(story.text.end(), event.tokens.begin(), event.tokens.end());
  counts_.num_tokens += event.tokens.size();
}

void Clients::check(const Story& story, const ResultEvent& last) {
  const Request& request = story.request;
  const auto wrong = [&](const char* what) {
    witness_.fault(fmt::format("request {} {}", request.id, what));
  };
  std::vector<int32_t> all = request.prompt;
  for (const auto* part : {&request.resumed, &story.text})
    all.insert(all.end(), part->begin(), part->end());
  if (knows_text_ && witness_.text_of(request.id) != nullptr &&
      last.finish_reason != FinishReason::kAborted && all != *witness_.text_of(request.id))
    wrong("got another text than the ranks decided");
  counts_.num_preempted += static_cast<uint64_t>(last.num_preemptions);
  counts_.num_reused += static_cast<uint64_t>(last.num_cached_tokens);
  counts_.num_drafts_judged += static_cast<uint64_t>(last.stats.num_draft_tokens);
  counts_.num_accepted += static_cast<uint64_t>(last.stats.num_accepted_tokens);
  counts_.num_bonus_drafts += static_cast<uint64_t>(last.stats.num_bonus_drafts);
  const bool is_whole =
      last.finish_reason == FinishReason::kStop || last.finish_reason == FinishReason::kLength;
  if (last.finish_reason == FinishReason::kAborted) {
    if (!story.is_cancelled && !is_stopped_) wrong(("was aborted: " + last.error).c_str());
    ++counts_.num_cancelled;
  }
  if (last.finish_reason == FinishReason::kError) {
    if (!spoiled_[request.id]) wrong(("failed: " + last.error).c_str());
    ++counts_.num_failed;
  }
  if (is_whole && request.params.prompt_logprobs &&
      story.num_prompt_scores + 1 != request.prompt.size())
    wrong("has not all prompt scores");
  if (!is_text_given(request.params)) return;
  ++counts_.num_compared;
  const Reference::Text expected = reference_.write(request);
  const size_t num_common = std::min(expected.tokens.size(), story.text.size());
  const bool is_beginning = story.text.size() <= expected.tokens.size() &&
                            std::equal(story.text.begin(),
                                       story.text.begin() + static_cast<ptrdiff_t>(num_common),
                                       expected.tokens.begin());
  if (!is_beginning) return wrong("wrote another text than the target alone");
  if (!is_whole) return;
  if (story.text.size() != expected.tokens.size() || last.finish_reason != expected.reason)
    wrong("ended for another reason than with the target alone");
  const bool must_fail = spoiled_[request.id] && request.resumed.empty() &&
                         story.text.size() > static_cast<size_t>(kSpoiledOutput);
  if (must_fail) wrong("did not fail, though its logits had a NaN");
}

void Clients::check_end() {
  for (const Story& story : open_)
    witness_.fault(fmt::format("request {} never ends", story.request.id));
}

}  // namespace outrider::test
