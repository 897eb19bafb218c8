// The coordinator's dealings with the draft worker: what it tells it and when, what it takes from
// it, and whether a round goes at once or waits for blocks. Used by the coordinator's loop, on its
// thread. Without a draft worker only the draft length is chosen (for drafts made by counting).
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/comm/world.h"
#include "runtime/ranks/draft_link.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/round_account.h"
#include "scheduler/draft_length.h"
#include "scheduler/planner.h"

namespace outrider {

class DraftSide {
 public:
  struct Parts {
    World& world;
    RankLayout layout;
    Planner& planner;  // outlives this
    const PlannerConfig& config;
    RoundAccount& account;  // outlives this
    uint32_t epoch = 0;
    double patience_s = 0;  // see DraftLink
    bool adaptive_draft_len = true;
  };
  explicit DraftSide(const Parts& parts);

  // The steps of a round (docs/round.md), in order.
  // Before the plan: waits for blocks where that was decided. Returns the seconds waited.
  double wait_for_blocks();
  // After the plan was sent: which rounds have begun.
  void tell_begun();
  // Between forward pass and verification: takes what has come.
  void hear();
  // After apply(): takes what has come, chooses the next drafts' length and whether to wait for
  // them; tells the draft so when it waits.
  void settle();

  void note_round(const RoundPlan& plan, const RoundDecision& decision, double compute_s);
  // Tells the draft that the job is over; false when it did not say goodbye.
  bool shut_down() { return !link_ || link_->shut_down(); }

  DraftState state() const { return state_; }
  const DraftLink* link() const { return link_.get(); }  // null without a draft worker
  double draft_step_s() const { return link_ ? link_->draft_step_s() : 0; }

 private:
  void tell(bool asks);
  void choose_draft_len();
  bool pays_to_wait(const DraftNeed& need) const;

  World& world_;
  Planner& planner_;
  RoundAccount& account_;
  const int draft_rank_;
  std::unique_ptr<DraftLink> link_;
  DraftState state_ = DraftState::kNone;
  DraftLength draft_length_;
  const bool is_patient_;
  const bool is_adaptive_;
  int32_t draft_len_;         // of the drafts asked for
  bool waits_ = false;        // for the blocks of the next round
  double plain_round_s_ = 0;  // moving averages
  double accepted_per_block_ = 0;
};

}  // namespace outrider
