// What a front end (HTTP, batch, bench) sees of the running engine. The coordinator implements it;
// every call is thread-safe and returns at once.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/request.h"

namespace outrider {

struct EngineInfo {
  std::string served_model_name;
  std::string model_root;  // the folder or name the model was loaded from
  int32_t max_model_len = 0;
  int32_t vocab_size = 0;
  int32_t num_target_ranks = 1;
  std::string draft;  // draft model folder, "ngram", "unigram", "bigram", "grammar", or
                      // empty
  int32_t num_speculative_tokens = 0;
};

enum class Admission : uint8_t {
  kAccepted,
  kQueueFull,     // 429
  kRefused,       // can never run: too long for the context or the KV memory; 400
  kShuttingDown,  // 503
};

struct AdmissionResult {
  Admission admission = Admission::kAccepted;
  std::string reason;  // one sentence unless accepted
};

enum class DraftState : uint8_t { kNone, kUp, kDown };

struct EngineStatus {
  bool ready = false;     // accepts requests
  bool draining = false;  // finishes what it has
  bool failed = false;    // the job is ending; all requests have been told
  DraftState draft = DraftState::kNone;
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  double last_round_age_s = 0;  // since a round ended, while there is work; 0 when idle
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineInfo& info() const = 0;
  virtual uint64_t next_request_id() = 0;
  // On kAccepted the request's stream will get events up to one with a finish reason; otherwise
  // nothing happens.
  virtual AdmissionResult submit(Request request) = 0;
  virtual void cancel(uint64_t request_id) = 0;
  // A request with this grammar is about to come: ranks that run anyway begin to compile it.
  virtual void announce(const std::shared_ptr<const Grammar>&) {}
  virtual EngineStatus status() const = 0;
};

}  // namespace outrider
