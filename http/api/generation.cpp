// See generation.h.
#include "http/api/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

#include "http/wire/api_error.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers/mix.h"

namespace outrider {
namespace {

// With several choices one stream is waited on at a time; their events come in the same rounds, so
// a short wait on each in turn loses nothing.
constexpr std::chrono::milliseconds kSharedWait{3};
// Events taken of one choice before the text is sent on: a client that stopped reading must be
// noticed however fast tokens come.
constexpr int kMaxEventsPerPoll = 16;

uint64_t random_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string_view first_characters(std::string_view utf8, size_t num_characters) {
  size_t end = 0;
  const auto is_inside = [&] { return (static_cast<unsigned char>(utf8[end]) & 0xc0) == 0x80; };
  for (; num_characters > 0 && end < utf8.size(); --num_characters) {
    ++end;
    while (end < utf8.size() && is_inside()) ++end;
  }
  return utf8.substr(0, end);
}

// Whether an answer says something of each token beside the text.
bool lists_tokens(const CompletionCall& call) {
  return call.num_logprobs >= 0 || call.return_token_ids || call.return_token_origins;
}

}  // namespace

uint64_t choice_noise_seed(uint64_t seed, int32_t number) {
  if (number == 0) return seed;
  return mix64(seed + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(number));
}

Generation::Generation(Engine& engine,
                       ServingMetrics& metrics,
                       std::shared_ptr<const Tokenizer> tokenizer,
                       CompletionCall call,
                       const AnswerFormats& answer_formats)
    : engine_(engine),
      metrics_(metrics),
      tokenizer_(std::move(tokenizer)),
      call_(std::move(call)),
      prompt_logprobs_(call_.prompt_ids.size()),
      echo_only_(call_.echo && call_.params.max_tokens == 0) {
  for (size_t prompt = 0; prompt < call_.prompt_ids.size(); ++prompt) {
    for (int32_t number = 0; number < call_.num_choices; ++number)
      add_choice(prompt, number, answer_formats);
  }
}

void Generation::add_choice(size_t prompt, int32_t number, const AnswerFormats& answer_formats) {
  OutputAssembler::Options options;
  options.stop = call_.stop;
  options.include_stop_text = call_.include_stop_text;
  options.skip_special_tokens = call_.skip_special_tokens;
  options.shown_special_ids = call_.shown_special_ids;
  options.min_tokens = call_.params.min_tokens;
  options.user_stop_token_ids = call_.user_stop_token_ids;
  options.wants_prompt_logprobs = call_.params.prompt_logprobs && call_.num_logprobs >= 0;
  options.drop_output = echo_only_;
  OutputAssembler assembler(tokenizer_, std::move(options));
  const bool completes = call_.kind == CallKind::kCompletion;
  if (completes && call_.echo) {
    assembler.echo_prompt(call_.prompt_ids[prompt], call_.num_added[prompt]);
  } else if (completes || call_.continued) {
    assembler.continue_prompt(call_.prompt_ids[prompt]);
  }
  std::unique_ptr<AnswerParser> parser;
  if (call_.kind == CallKind::kChat) {
    AnswerFormats formats = answer_formats;
    // Calls of harmony are in channels, whatever becomes of the reasoning in others.
    const bool reads_channels = formats.is_harmony() && call_.functions;
    if (!call_.separates_reasoning && !reads_channels) formats.reasoning = nullptr;
    parser = make_answer_parser({.formats = formats,
                                 .functions = call_.functions,
                                 .begins_in_reasoning = call_.begins_in_reasoning,
                                 .parallel = call_.parallel_tool_calls,
                                 .id_seed = random_seed()});
  }
  const uint64_t noise_seed =
      call_.params.seed ? choice_noise_seed(*call_.params.seed, number) : random_seed();
  choices_.push_back(std::make_unique<Choice>(Choice{.prompt = prompt,
                                                     .noise_seed = noise_seed,
                                                     .stream = std::make_shared<ResultStream>(),
                                                     .assembler = std::move(assembler),
                                                     .parser = std::move(parser)}));
  if (!call_.resume_token_ids.empty()) resume(*choices_.back());
}

// What was generated before is read again, so that text, stop strings and calls go on behind it,
// and shown to nobody.
void Generation::resume(Choice& choice) {
  ResultEvent event;
  event.tokens = call_.resume_token_ids;
  const std::vector<int32_t>& stops = call_.params.stop_token_ids;
  const auto num_before_last = static_cast<int32_t>(event.tokens.size()) - 1;
  if (num_before_last >= call_.params.min_tokens &&
      std::ranges::binary_search(stops, event.tokens.back())) {
    event.stop_token = event.tokens.back();
    event.tokens.resize(event.tokens.size() - 1);
    event.finish_reason = FinishReason::kStop;
  } else if (num_before_last + 1 >= call_.params.max_tokens) {
    event.finish_reason = FinishReason::kLength;
  }
  choice.assembler.add(event);
  const OutputDelta shown = choice.assembler.take();
  if (choice.parser) choice.parser->push(shown.text);
  choice.ended = choice.assembler.finished();
}

Generation::~Generation() {
  for (const auto& choice : choices_) {
    if (choice->request_id == 0 || choice->ended) continue;
    engine_.cancel(choice->request_id);
    metrics_.request_success(FinishReason::kAborted).add();
  }
}

void Generation::start() {
  metrics_.request_params_n.observe(call_.num_choices);
  metrics_.request_params_max_tokens.observe(call_.params.max_tokens);
  if (echo_only_ && !call_.params.prompt_logprobs) {
    for (const auto& choice : choices_) {
      choice->assembler.finish(FinishReason::kLength);
      choice->ended = true;
    }
  }
  if (choices_.front()->ended) {  // of all, or of the one whose resumed tokens are its whole answer
    next_unsubmitted_ = choices_.size();
    saw_event_ = true;
    return;
  }
  submit_waiting();
  if (next_unsubmitted_ == 0) throw ApiError(429, "the queue is full", {}, "queue_full");
}

bool Generation::is_first_of_prompt(const Choice& choice) const {
  const auto first = choice.prompt * static_cast<size_t>(call_.num_choices);
  return &choice == choices_[first].get();
}

bool Generation::submit(Choice& choice) {
  Request request;
  request.id = engine_.next_request_id();
  request.prompt = call_.prompt_ids[choice.prompt];
  request.resumed = call_.resume_token_ids;
  request.params = call_.params;
  request.params.noise_seed = choice.noise_seed;
  // Scored once for all choices, unless each shows it in its own text.
  if (!call_.echo && !is_first_of_prompt(choice)) request.params.prompt_logprobs = false;
  // Salts of clients and of requests that reuse nothing are told apart by their first letter.
  if (!call_.cache_prompt) {
    request.cache_salt = "request " + std::to_string(request.id);
  } else if (!call_.cache_salt.empty()) {
    request.cache_salt = "salt " + call_.cache_salt;
  }
  // The engine makes at least one token; the one of an echo is dropped.
  request.params.max_tokens = std::max(request.params.max_tokens, 1);
  request.priority = call_.priority;
  request.is_further = &choice != choices_.front().get();
  request.stream = choice.stream;
  choice.submitted_at = request.arrival;
  const uint64_t id = request.id;
  const AdmissionResult result = engine_.submit(std::move(request));
  if (result.admission == Admission::kQueueFull) return false;
  if (result.admission == Admission::kShuttingDown)
    throw ApiError(503, result.reason, {}, "shutting_down");
  if (result.admission != Admission::kAccepted) throw ApiError(400, result.reason);
  choice.request_id = id;
  metrics_.request_prompt_tokens.observe(
      static_cast<double>(call_.prompt_ids[choice.prompt].size()));
  return true;
}

void Generation::submit_waiting() {
  while (next_unsubmitted_ < choices_.size() && submit(*choices_[next_unsubmitted_])) {
    ++next_unsubmitted_;
  }
}

bool Generation::done() const {
  return std::ranges::all_of(choices_, [](const auto& choice) { return choice->ended; });
}

bool Generation::poll(std::chrono::milliseconds timeout) {
  submit_waiting();
  size_t num_running = 0;
  for (const auto& choice : choices_) num_running += choice->request_id != 0 && !choice->ended;
  if (num_running == 0) {  // the engine has no place for the next one
    if (!done()) std::this_thread::sleep_for(timeout);
    return false;
  }
  do {
    next_waited_ = (next_waited_ + 1) % choices_.size();
  } while (choices_[next_waited_]->request_id == 0 || choices_[next_waited_]->ended);
  bool any = false;
  const auto wait = num_running == 1 ? timeout : std::min(timeout, kSharedWait);
  if (auto event = choices_[next_waited_]->stream->wait_next(wait)) {
    receive(*choices_[next_waited_], *event);
    any = true;
  }
  for (const auto& choice : choices_) {
    for (int taken = 0; taken < kMaxEventsPerPoll; ++taken) {
      if (choice->request_id == 0 || choice->ended) break;
      auto event = choice->stream->wait_next(std::chrono::milliseconds(0));
      if (!event) break;
      receive(*choice, *event);
      any = true;
    }
  }
  return any;
}

void Generation::receive(Choice& choice, const ResultEvent& event) {
  saw_event_ = true;
  if (call_.spec_decode_metrics == SpecDecodeMetrics::kNone) {
    choice.speculation.stats = event.stats;
  } else {
    choice.speculation.note(event.stats, call_.spec_decode_metrics == SpecDecodeMetrics::kDetailed);
  }
  choice.num_cached_tokens = event.num_cached_tokens;
  const bool is_aborted = event.finish_reason == FinishReason::kAborted;
  if (is_aborted || event.finish_reason == FinishReason::kError) {
    choice.ended = true;
    metrics_.request_success(event.finish_reason).add();
    const char* standard =
        is_aborted ? "the request was aborted" : "the engine failed this request";
    const int status = is_aborted ? 503 : event.is_request_fault ? 400 : 500;
    throw ApiError(status, event.error.empty() ? standard : event.error);
  }
  observe_tokens(choice, event);
  if (call_.num_prompt_logprobs && !event.prompt_logprobs.empty())
    prompt_logprobs_[choice.prompt] = event.prompt_logprobs;
  const int32_t num_tokens_before = choice.assembler.num_tokens();
  choice.assembler.add(event);
  metrics_.generation_tokens.add(choice.assembler.num_tokens() - num_tokens_before);
  if (!choice.assembler.finished()) return;
  // A stop string is our find; the engine does not know yet.
  if (event.finish_reason == FinishReason::kNone) engine_.cancel(choice.request_id);
  end(choice, event);
}

void Generation::observe_tokens(Choice& choice, const ResultEvent& event) {
  const size_t num_tokens = event.tokens.size() + (event.stop_token ? 1 : 0);
  if (num_tokens == 0) return;
  if (!choice.first_token_at) {
    choice.first_token_at = event.decided_at;
    metrics_.prompt_tokens.add(static_cast<double>(call_.prompt_ids[choice.prompt].size()));
    metrics_.prompt_tokens_cached.add(event.num_cached_tokens);
    metrics_.time_to_first_token_seconds.observe(seconds(Clock::now() - choice.submitted_at));
  } else {
    const double each =
        seconds(event.decided_at - choice.last_token_at) / static_cast<double>(num_tokens);
    for (size_t i = 0; i < num_tokens; ++i) {
      metrics_.inter_token_latency_seconds.observe(each);
    }
  }
  choice.last_token_at = event.decided_at;
}

void Generation::observe_phases(const Choice& choice, const ResultEvent& event) {
  if (!event.scheduled_at || !choice.first_token_at) return;
  metrics_.request_queue_time_seconds.observe(seconds(*event.scheduled_at - choice.submitted_at));
  metrics_.request_prefill_time_seconds.observe(
      seconds(*choice.first_token_at - *event.scheduled_at));
  metrics_.request_decode_time_seconds.observe(
      seconds(choice.last_token_at - *choice.first_token_at));
  metrics_.request_inference_time_seconds.observe(
      seconds(choice.last_token_at - *event.scheduled_at));
}

void Generation::end(Choice& choice, const ResultEvent& event) {
  choice.ended = true;
  const int32_t num_tokens = choice.assembler.num_tokens();
  metrics_.request_success(choice.assembler.finish_reason()).add();
  metrics_.request_generation_tokens.observe(num_tokens);
  metrics_.request_num_preemptions.observe(event.num_preemptions);
  observe_phases(choice, event);
  metrics_.e2e_request_latency_seconds.observe(seconds(Clock::now() - choice.submitted_at));
  if (choice.first_token_at && num_tokens > 1) {
    metrics_.request_time_per_output_token_seconds.observe(
        seconds(choice.last_token_at - *choice.first_token_at) / (num_tokens - 1));
  }
}

size_t Generation::num_prompt_logprobs() const {
  if (!call_.params.prompt_logprobs) return 0;
  const bool once = call_.kind == CallKind::kChat;
  size_t num_tokens = 0;
  for (const auto& choice : choices_) {
    if (!once || is_first_of_prompt(*choice)) num_tokens += call_.prompt_ids[choice->prompt].size();
  }
  return num_tokens * (1 + static_cast<size_t>(std::max(0, call_.params.num_logprobs)));
}

size_t Generation::num_logprobs() const {
  if (call_.params.num_logprobs < 0) return 0;
  size_t num_tokens = 0;
  for (const auto& choice : choices_)
    num_tokens += static_cast<size_t>(choice->assembler.num_tokens());
  return num_prompt_logprobs() + num_tokens * (1 + static_cast<size_t>(call_.params.num_logprobs));
}

// Token by token, so that those of the reasoning can be counted.
AnswerPieces Generation::pieces_of(Choice& choice, const OutputDelta& delta) const {
  AnswerPieces pieces;
  if (!choice.parser) {
    if (call_.kind == CallKind::kChat) pieces.content = delta.text;
    return pieces;
  }
  std::string_view rest = delta.text;
  for (size_t i = 0; i + 1 < delta.tokens.size(); ++i) {
    const size_t num_characters = delta.tokens[i + 1].text_offset - delta.tokens[i].text_offset;
    const std::string_view text = first_characters(rest, num_characters);
    rest.remove_prefix(text.size());
    pieces.append(choice.parser->push(text));
    choice.num_reasoning_tokens += choice.parser->in_reasoning() ? 1 : 0;
  }
  pieces.append(choice.parser->push(rest));
  choice.num_reasoning_tokens += choice.parser->in_reasoning() && !delta.tokens.empty() ? 1 : 0;
  if (choice.ended) pieces.append(choice.parser->finish());
  if (!call_.include_reasoning) pieces.reasoning.clear();
  if (!call_.separates_reasoning) pieces.content.insert(0, std::exchange(pieces.reasoning, {}));
  return pieces;
}

std::optional<ChoiceOutput> Generation::take(size_t i) {
  Choice& choice = *choices_[i];
  if (choice.end_taken) return std::nullopt;
  ChoiceOutput out;
  out.index = static_cast<int32_t>(i);
  out.delta = choice.assembler.take();
  out.pieces = pieces_of(choice, out.delta);
  const bool begins = !choice.anything_taken && (choice.ended || !out.delta.tokens.empty());
  if (begins) out.pieces.content.insert(0, call_.answer_prefix);
  if (choice.ended) {
    out.finish_reason = choice.assembler.finish_reason();
    out.stop_reason = choice.assembler.stop_reason();
    out.has_called = choice.parser && choice.parser->num_calls() > 0;
    choice.end_taken = true;
  } else if (call_.kind == CallKind::kChat && !lists_tokens(call_) ? out.pieces.empty()
                                                                   : out.delta.tokens.empty()) {
    return std::nullopt;
  }
  out.is_first =
      std::ranges::none_of(choices_, [](const auto& any) { return any->anything_taken; });
  if (call_.return_token_ids && !choice.anything_taken)
    out.prompt_token_ids = &call_.prompt_ids[choice.prompt];
  if (call_.num_prompt_logprobs)
    out.prompt_logprobs = {&call_.prompt_ids[choice.prompt], &prompt_logprobs_[choice.prompt]};
  choice.anything_taken = true;
  return out;
}

void Generation::log_end(const std::string& id, const char* outcome) const {
  const Usage total = usage();
  int32_t num_rounds = 0;
  int32_t num_drafted = 0;
  int32_t num_accepted = 0;
  auto first_token_at = Clock::time_point::max();
  for (const auto& choice : choices_) {
    if (choice->first_token_at) first_token_at = std::min(first_token_at, *choice->first_token_at);
    num_rounds += choice->speculation.stats.num_rounds;
    num_drafted += choice->speculation.stats.num_draft_tokens;
    num_accepted += choice->speculation.stats.num_accepted_tokens;
  }
  std::string text = fmt::format("{} prompt tokens, {} generated in {} rounds",
                                 total.prompt_tokens,
                                 total.completion_tokens,
                                 num_rounds);
  if (num_drafted > 0)
    text += fmt::format(", {} of {} draft tokens accepted", num_accepted, num_drafted);
  if (first_token_at != Clock::time_point::max())
    text += fmt::format(", first token after {:.0f} ms", 1e3 * seconds(first_token_at - begun_at_));
  const double total_s = seconds(Clock::now() - begun_at_);
  log_info("{} {}: {}, {:.1f} tokens/s, {:.0f} ms in all",
           id,
           outcome,
           text,
           static_cast<double>(total.completion_tokens) / std::max(total_s, 1e-9),
           1e3 * total_s);
}

Usage Generation::usage_of(size_t i) const {
  const Choice& choice = *choices_[i];
  return {static_cast<int64_t>(call_.prompt_ids[choice.prompt].size()),
          choice.assembler.num_tokens(),
          choice.num_cached_tokens,
          choice.num_reasoning_tokens};
}

Usage Generation::usage() const {
  // A prompt counts once, however many choices continue it.
  Usage usage;
  for (const auto& prompt : call_.prompt_ids)
    usage.prompt_tokens += static_cast<int64_t>(prompt.size());
  for (const auto& choice : choices_) {
    usage.completion_tokens += choice->assembler.num_tokens();
    usage.reasoning_tokens += choice->num_reasoning_tokens;
    if (is_first_of_prompt(*choice)) usage.cached_tokens += choice->num_cached_tokens;
  }
  return usage;
}

std::optional<SpeculationReport> Generation::speculation() const {
  if (choices_.size() != 1 || engine_.info().draft.empty()) return std::nullopt;
  const int32_t asked = call_.params.max_draft_len;
  const int32_t most = engine_.info().num_speculative_tokens;
  SpeculationReport report = choices_.front()->speculation;
  report.num_spec_tokens = asked >= 0 ? std::min(asked, most) : most;
  return report;
}

}  // namespace outrider
