// The coordinator: the only one who plans. Its loop is the round of docs/round.md; its Engine side
// is what front ends call from their threads. Rank 0's main thread runs loop(), everything else
// comes in through one mailbox.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "http/api/serving_metrics.h"
#include "runtime/base/clock.h"
#include "runtime/base/telemetry/trace.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/checks.h"
#include "runtime/ranks/coordinator/draft_pacer.h"
#include "runtime/ranks/coordinator/round_account.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/target/target.h"
#include "scheduler/batching/planner.h"
#include "scheduler/engine.h"

namespace outrider {

// Moving averages of what a round costs, for benchmarks and the draft's deadline.
struct RoundTimes {
  double plain_round_s = 0;   // one row per sequence, no draft tokens
  double verify_round_s = 0;  // with draft tokens, without the wait for them
  double draft_step_s = 0;    // one forward pass of the draft
  // Since the start, of the same rounds: what lies between two looks has no other rounds in it.
  double plain_total_s = 0;
  double verify_total_s = 0;
  double waited_total_s = 0;  // for the draft, between rounds
  int64_t num_plain_rounds = 0;
  int64_t num_verify_rounds = 0;
};

struct RoundSample {
  RoundRecord record;
  JobClock::time_point end;
};

class Coordinator final : public Engine {
 public:
  struct Parts {
    World& world;
    RankLayout layout;
    TargetRank& target;
    PlannerConfig planner;
    EngineInfo info;
    ServingMetrics& metrics;
    int32_t max_num_queued_reqs = 256;
    VerifyMode verify_mode = VerifyMode::kAuto;  // of requests that name none, as the next
    AsyncDrafting async_drafting = AsyncDrafting::kOff;
    bool draft_translates = false;        // then no request may choose another
    uint32_t epoch = 0;                   // of the draft rank's first life
    DraftServer* draft_server = nullptr;  // where drafts attach, or null; outlives this
    double draft_patience_s = 0;
    bool chooses_draft_len = true;  // num_speculative_tokens: auto
    Checks checks;
  };
  explicit Coordinator(const Parts& parts);

  // Runs rounds until request_stop() and all work is done; then sends the last plan to the other
  // ranks.
  void loop();

  // When loop() has thrown, on its thread: hands out what rounds have decided.
  void deliver_decided();
  // Every request ends with this reason, also those still to come. Any thread, also while loop() is
  // stuck in a round.
  void fail(const std::string& reason);

  // Engine: any thread.
  const EngineInfo& info() const override { return parts_.info; }
  uint64_t next_request_id() override { return ++last_request_id_; }
  AdmissionResult submit(Request request) override;
  void cancel(uint64_t request_id) override;
  void announce(const std::shared_ptr<const Grammar>& grammar) override;
  EngineStatus status() const override;

  // Any thread. No new requests; loop() returns when what runs is done, or at once with kNow (what
  // is left ends with an error).
  enum class Stop { kWhenIdle, kNow };
  void request_stop(Stop when);
  RoundTimes round_times() const;
  // The rounds since the last call, the latest few thousand at most. Any thread.
  std::vector<RoundSample> take_round_samples();
  // What speculation brought so far.
  SpeedupTotals speedup_totals() const;

 private:
  struct Inbox {
    std::vector<Request> requests;
    std::vector<uint64_t> cancels;
    std::vector<std::shared_ptr<const Grammar>> grammars;
  };

  void take_inbox();
  void record_waiting();
  void measure_steps();
  void wait_for_work();
  bool run_round();  // false when there was nothing to compute
  void broadcast(const RoundPlan& plan);
  double wait_for_draft();                // seconds
  std::optional<RoundPlan> plan_round();  // null: nothing to compute
  void agree(const RoundDecision& decision);
  LateDraftTokens late_draft_tokens(const RoundPlan& plan);
  void post_to_targets(const Bytes& bytes);
  void deliver_last_round();
  void shut_down();
  struct RoundClock {
    void start_step() {
      step_begin = JobClock::now();
      step_begin_ns = trace_now_ns();
    }
    JobClock::time_point begin = JobClock::now();
    double waited_s = 0;  // for the draft
    JobClock::time_point step_begin;
    int64_t step_begin_ns = 0;
  };
  void apply(RoundDecision decision, const RoundClock& clock);
  struct FinishedRound {
    RoundPlan plan;
    RoundDecision decision;
    std::vector<PendingResult> results;  // for the streams
    RoundRecord record;
    int64_t step_begin_ns = 0;  // trace_now_ns()
    int64_t step_end_ns = 0;
    JobClock::time_point end;
  };
  void record_times(const FinishedRound& round);
  void publish_status();
  void publish_traffic();

  const Parts parts_;
  Planner planner_;
  BookCheck book_check_;
  RoundAccount account_;
  DraftPacer draft_;
  uint64_t round_ = 0;
  std::optional<FinishedRound> last_round_;  // not yet counted and delivered
  uint64_t num_preemptions_counted_ = 0;
  uint64_t num_plan_bytes_ = 0;
  std::vector<std::shared_ptr<const Grammar>> grammars_;  // for the next plan

  std::atomic<uint64_t> last_request_id_{0};
  mutable std::mutex inbox_mutex_;
  ClockCondition inbox_filled_;
  Inbox inbox_;
  std::vector<std::weak_ptr<ResultStream>> streams_;  // of requests taken, those that live
  bool stopping_ = false;
  bool stop_now_ = false;
  std::string failure_;
  int32_t num_taken_waiting_ = 0;  // requests that wait and are not in the inbox any more

  mutable std::mutex status_mutex_;
  EngineStatus status_;
  RoundTimes times_;
  std::vector<RoundSample> samples_;
  SpeedupTotals speedup_totals_;
  JobClock::time_point last_round_end_ = JobClock::now();
};

}  // namespace outrider
