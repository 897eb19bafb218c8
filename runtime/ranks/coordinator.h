// The coordinator: the only one who plans. Its loop is the round of docs/round.md; its Engine side
// is what front ends call from their threads. Rank 0's main thread runs loop(), everything else
// comes in through one mailbox.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "http/serving_metrics.h"
#include "runtime/base/clock.h"
#include "runtime/comm/world.h"
#include "runtime/ranks/checks.h"
#include "runtime/ranks/draft_link.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/target.h"
#include "scheduler/draft_length.h"
#include "scheduler/engine.h"
#include "scheduler/planner.h"

namespace outrider {

// Moving averages of what a round costs, for benchmarks and the draft's deadline.
struct RoundTimes {
  double plain_round_s = 0;   // one row per sequence, no draft tokens
  double verify_round_s = 0;  // with draft tokens, without the wait for them
  double draft_step_s = 0;    // one forward pass of the draft
  // Since the start, of the same rounds: what lies between two looks has no other rounds in it.
  double plain_total_s = 0;
  double verify_total_s = 0;
  int64_t num_plain_rounds = 0;
  int64_t num_verify_rounds = 0;
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
    VerifyMode verify_mode = VerifyMode::kAuto;  // of requests that name none
    uint32_t epoch = 0;
    double draft_patience_s = 0;
    bool adaptive_draft_len = true;
    Checks checks;
  };
  explicit Coordinator(const Parts& parts);

  // Runs rounds until request_stop() and all work is done; then sends the last plan to the other
  // ranks.
  void loop();

  // Engine: any thread.
  const EngineInfo& info() const override { return info_; }
  uint64_t next_request_id() override { return ++last_request_id_; }
  AdmissionResult submit(Request request) override;
  void cancel(uint64_t request_id) override;
  EngineStatus status() const override;

  // Any thread. No new requests; loop() returns when what runs is done, or at once with kNow (what
  // is left ends with an error).
  enum class Stop { kWhenIdle, kNow };
  void request_stop(Stop when);
  RoundTimes round_times() const;

 private:
  struct Inbox {
    std::vector<Request> requests;
    std::vector<uint64_t> cancels;
  };

  void take_inbox();
  void wait_for_work();
  bool run_round();  // false when there was nothing to compute
  void wait_for_draft();
  void hear_draft();
  void tell_draft();
  void choose_draft_len();
  void broadcast(const RoundPlan& plan);
  void shut_down();
  void count_round(const RoundPlan& plan, const RoundDecision& decision, double round_s);
  void publish_status();
  void publish_traffic();

  World& world_;
  const RankLayout layout_;
  TargetRank& target_;
  const EngineInfo info_;
  ServingMetrics& metrics_;
  const int32_t max_num_queued_reqs_;
  const VerifyMode verify_mode_;
  const int32_t num_blocks_;
  Planner planner_;
  BookCheck book_check_;
  std::unique_ptr<DraftLink> draft_;  // null without a draft worker
  DraftState draft_state_ = DraftState::kNone;
  uint64_t round_ = 0;
  uint64_t num_preemptions_counted_ = 0;
  uint64_t num_misses_counted_ = 0;
  uint64_t num_plan_bytes_ = 0;
  DraftLength draft_length_;
  const bool adaptive_draft_len_;
  int32_t draft_len_;                                  // of the drafts asked for
  double accepted_per_block_ = 0;                      // moving average
  std::map<uint64_t, JobClock::time_point> arrivals_;  // of requests not yet planned

  std::atomic<uint64_t> last_request_id_{0};
  mutable std::mutex inbox_mutex_;
  ClockCondition inbox_filled_;
  Inbox inbox_;
  bool stopping_ = false;
  bool stop_now_ = false;

  mutable std::mutex status_mutex_;
  EngineStatus status_;
  RoundTimes times_;
  JobClock::time_point last_round_end_ = JobClock::now();
};

}  // namespace outrider
