// The clients of a simulated job: requests of all kinds at random times, cancelled at random times.
// Every request must end exactly once, for the right reason, with the tokens that the ranks
// decided; greedy and seeded ones with the text that the target alone writes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/ranks/target/target.h"
#include "scheduler/engine.h"
#include "tests/simulation/setting.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/witness.h"

namespace outrider::test {

// The target alone: one request at a time, no drafts, no reuse.
class Reference {
 public:
  explicit Reference(const Setting& setting);
  struct Text {
    std::vector<int32_t> tokens;
    FinishReason reason = FinishReason::kLength;
  };
  Text write(const Request& request);

 private:
  const Setting& setting_;
  const std::unique_ptr<TargetGroup> group_;
  ToyModel model_;
  TargetRank target_;
  uint64_t last_id_ = 0;
};

class Clients {
 public:
  // knows_text: the witness sees decisions.
  Clients(const Setting& setting, Witness& witness, bool knows_text);

  // Which of the requests to come are to fail: OUTRIDER_FAULT's text, may be empty.
  std::string spoiling() const;
  // Once a round or more often: reads events, cancels, submits. False when all have ended.
  bool act(Engine& engine);
  // The same when nothing runs: something comes.
  bool act_idle(Engine& engine);
  // The server was told to stop at once: requests may be refused, and end with an error.
  bool wants_stop() { return !is_stopped_ && dice_.chance(setting_.clients.stops); }
  void note_stopped() { is_stopped_ = true; }
  // The job has ended: nothing may be left.
  void check_end();

  // What they have seen of it.
  const SimulationResult& counts() const { return counts_; }
  int64_t num_rows_needed() const { return num_rows_needed_; }
  bool is_idle() const { return open_.empty(); }

 private:
  struct Story {
    Request request;
    bool is_cancelled = false;
    std::vector<int32_t> text;
    size_t num_events = 0;
    size_t num_prompt_scores = 0;
  };
  void submit(Engine& engine);
  std::vector<int32_t> some_prompt();
  void vary(SamplingParams& params);
  void cancel_one(Engine& engine);
  bool read(Story& story);  // true at the end
  void take(Story& story, const ResultEvent& event);
  void check(const Story& story, const ResultEvent& last);

  const Setting& setting_;
  Witness& witness_;
  const bool knows_text_;
  Dice dice_;
  Dice spoiling_;
  Reference reference_;
  std::vector<bool> spoiled_;  // by id
  std::vector<Story> open_;
  std::vector<std::vector<int32_t>> earlier_;  // texts that others may begin with
  bool is_stopped_ = false;
  int32_t num_submitted_ = 0;
  SimulationResult counts_;
  int64_t num_rows_needed_ = 0;
};

}  // namespace outrider::test
