// One call while it runs: its prompts times n choices as requests of the engine, their events,
// their text. Submits, waits, measures, and cancels what is left when it goes. Owned by the thread
// that answers the call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http/api/openai_request.h"
#include "http/api/openai_response.h"
#include "http/api/output_assembler.h"
#include "http/api/serving_metrics.h"
#include "runtime/base/clock.h"
#include "scheduler/engine.h"

namespace outrider {

class Generation {
 public:
  // call: with its prompts as token ids and params.max_tokens settled (add_prompts()).
  Generation(Engine& engine,
             ServingMetrics& metrics,
             std::shared_ptr<const Tokenizer> tokenizer,
             CompletionCall call,
             const AnswerFormats& answer_formats);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Submits. Throws ApiError (429, 503, 400) when the first request is not taken; later ones of the
  // same call that find the queue full are submitted as room appears.
  void start();

  // Waits for events of any choice, at most about `timeout`; true when something came. Throws
  // ApiError when the engine failed a request.
  bool poll(std::chrono::milliseconds timeout);

  bool done() const;
  bool has_output() const { return saw_event_; }

  const CompletionCall& call() const { return call_; }
  size_t num_choices() const { return choices_.size(); }
  // Listed in the answer: of the prompts, and so far in all.
  size_t num_prompt_logprobs() const;
  size_t num_logprobs() const;

  // What choice i can show now; its finish reason comes with the last of it. nullopt when there is
  // nothing new.
  std::optional<ChoiceOutput> take(size_t i);

  // One line about the call: its tokens, how it went and how long, nothing of what was said.
  void log_end(const std::string& id, const char* outcome) const;

  Usage usage() const;
  // So far, of one choice.
  Usage usage_of(size_t i) const;
  // Only for calls with one choice to a server that speculates.
  std::optional<SpeculationReport> speculation() const;

 private:
  using Clock = JobClock;

  struct Choice {
    size_t prompt = 0;
    uint64_t noise_seed = 0;
    uint64_t request_id = 0;  // 0: not submitted yet
    std::shared_ptr<ResultStream> stream;
    OutputAssembler assembler;
    std::unique_ptr<AnswerParser> parser;  // null: the text is content as it is
    SpeculationReport speculation;
    int32_t num_cached_tokens = 0;
    int32_t num_reasoning_tokens = 0;
    Clock::time_point submitted_at;
    // The engine's times of what has come.
    std::optional<Clock::time_point> first_token_at;
    Clock::time_point last_token_at;
    bool ended = false;  // nothing more will come, or nothing more is wanted
    bool end_taken = false;
    bool anything_taken = false;
  };

  void add_choice(size_t prompt, int32_t number, const AnswerFormats& answer_formats);
  AnswerPieces pieces_of(Choice& choice, const OutputDelta& delta) const;
  void resume(Choice& choice);
  // False when the queue is full.
  bool submit(Choice& choice);
  void submit_waiting();
  bool is_first_of_prompt(const Choice& choice) const;
  void receive(Choice& choice, const ResultEvent& event);
  void observe_tokens(Choice& choice, const ResultEvent& event);
  void observe_phases(const Choice& choice, const ResultEvent& event);
  void end(Choice& choice, const ResultEvent& event);

  Engine& engine_;
  ServingMetrics& metrics_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  CompletionCall call_;
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs_;  // of each prompt's [1..], when shown
  bool echo_only_ = false;                                   // max_tokens 0: no output is wanted
  std::vector<std::unique_ptr<Choice>> choices_;
  size_t next_unsubmitted_ = 0;
  size_t next_waited_ = 0;
  bool saw_event_ = false;
  const Clock::time_point begun_at_ = Clock::now();
};

// Seed of the draws of choice `number`: the user's seed itself for the first, a fixed mix for the
// others, so that a list of prompts gives what its members give alone.
uint64_t choice_noise_seed(uint64_t seed, int32_t number);

}  // namespace outrider
