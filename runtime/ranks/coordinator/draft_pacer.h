// What each round of the coordinator does about drafts: how long they are to be, whether the round
// waits for them, what the draft rank is told and when. Used by the coordinator's loop, on its
// thread. Without a draft only the draft length is chosen (for drafts made by counting).
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/coordinator/draft_client.h"
#include "runtime/ranks/coordinator/draft_roster.h"
#include "runtime/ranks/coordinator/round_account.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/target/step_probe.h"
#include "scheduler/batching/planner.h"
#include "scheduler/engine.h"
#include "scheduler/pacing/speculation.h"

namespace outrider {

class DraftPacer {
 public:
  struct Parts {
    World& world;
    RankLayout layout;
    Planner& planner;  // outlives this
    const PlannerConfig& config;
    RoundAccount& account;          // outlives this
    uint32_t epoch = 0;             // of the draft rank
    DraftServer* server = nullptr;  // where drafts attach, or null; outlives this
    double patience_s = 0;          // see DraftClient
    bool drafts_async = false;
    bool chooses_draft_len = true;  // num_speculative_tokens: auto
  };
  explicit DraftPacer(const Parts& parts);

  // Whether it is this side that chooses lengths, by what steps cost: then probes of the target's
  // help. They are noted before the first round.
  bool wants_probes() const { return chooses_ && has_drafts_; }
  void record_probe(const StepProbe& probe) {
    speculation_.record_probe(probe.load, probe.seconds);
  }

  static constexpr double kNoEndS = 3600;  // its deadline ends a wait long before
  // The steps of a round (docs/round.md), in order.
  // Requests have come: what was chosen is looked at again before the plan.
  void record_arrivals() { news_ = true; }
  // Before the plan: waits for blocks while that pays; true when longest_s are over before that is,
  // and the wait is to go on.
  double expected_wait_s() const { return client_ && choice_.wait ? choice_.wait_s : 0; }
  bool wait_for_blocks(double longest_s = kNoEndS);
  double waited_s() const { return waited_s_; }  // since the last plan
  // After the plan was sent: which rounds have begun.
  void tell_begun();
  // Whenever there is time: takes what has come; false when nothing had.
  bool hear();
  // While the target's device computes: takes what comes, as it comes, until a little before `end`.
  // False when it is too near. Without a draft worker it is only waited for.
  bool listen_until(JobClock::time_point end);
  // The same for all that has come while nobody looked: MPI takes in what has arrived while it is
  // asked, and hands it out when it is asked again.
  void catch_up();
  // After decide(): chooses for the next round whether to wait, and how long drafts should be;
  // tells the draft so when it waits. Adds to the record what only this side knows: whether the
  // draft worked, and the time since the last round.
  void settle(RoundRecord& record);
  // Nothing was to be done since the last round.
  void record_idle();

  // Tells the draft that the job is over; false when it did not say goodbye.
  bool shut_down() { return !roster_ || roster_->shut_down(); }

  DraftState state() const;
  const DraftClient* client() const { return client_.get(); }  // null without a draft
  size_t num_standing_by() const { return roster_ ? roster_->num_standing_by() : 0; }
  double draft_step_s() const { return client_ ? client_->draft_step_s() : 0; }

 private:
  void make_client(const Parts& parts);
  void pause(Backoff& backoff);
  void tell(bool asks);
  void choose(bool may_wait);
  void follow_state(JobClock::time_point now);
  void record_first_tokens(JobClock::time_point now, size_t num_tokens);
  void take_blocks(const PackedReply& reply, JobClock::time_point now);
  void record_round(RoundRecord& record);

  World& world_;
  Planner& planner_;
  RoundAccount& account_;
  std::unique_ptr<DraftClient> client_;  // null where there is no draft and none can attach
  std::unique_ptr<DraftRoster> roster_;  // the same
  bool was_up_;
  uint64_t num_lives_ = 0;  // of the client's, that the planner knows of
  Speculation speculation_;
  const bool chooses_;  // else every draft is as long as can be
  const bool has_drafts_;
  RoundChoice choice_;             // for the next round
  bool any_in_one_piece_ = false;  // a sequence that does not draft asynchronously was chosen for
  JobClock::time_point look_again_{};  // when it is waiting: to choose anew

  bool news_ = false;      // blocks were taken since the choice, of those that could change it
  bool was_told_ = false;  // something to draft for, since the last round
  JobClock::time_point round_end_ = JobClock::now();
  double waited_s_ = 0;       // before the round that runs
  double plain_round_s_ = 0;  // moving averages
  double accepted_per_block_ = 0;
};

}  // namespace outrider
