// The coordinator's end of the link to the draft: sends requests, takes blocks, and knows how long
// waiting is worth it and when the draft counts as down. Nothing here waits; a draft that hangs,
// dies or is slow costs at most the round's deadline, and soon not even that.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/comm/world/world.h"
#include "scheduler/drafting/packed_block.h"
#include "scheduler/engine.h"
#include "scheduler/round.h"

namespace outrider {

class DraftLink {
 public:
  using Clock = JobClock;

  // patience_s: every round may wait so long at least, and a silent draft counts as down only after
  // it; 0 = none.
  DraftLink(World& world, int draft_rank, uint32_t epoch, double patience_s = 0);

  // Fills in the serial and sends; a request that carries nothing is not sent.
  void send(DraftRequest request, Clock::time_point now);
  // All replies that have arrived. Damaged and stale frames are dropped and counted.
  std::vector<PackedReply> receive(Clock::time_point now);
  // Tells the draft that the job is over and waits a few seconds for its goodbye; false when none
  // came.
  bool shut_down();

  // Until when this round may wait for blocks: clamp(2 x the usual time to the first tokens, 2 ms,
  // max(50 ms, worth_s)) after the request went out, where worth_s is the time a block usually
  // saves the target. While tokens come: clamp(2 x the usual time between them, 2 ms, ...) after
  // the last ones, within max(50 ms, worth_s) after the request. After misses in a row the wait is
  // skipped for a while, longer each time.
  Clock::time_point deadline(double worth_s) const;
  bool skips_wait() const { return num_rounds_to_skip_ > 0 && patience_s_ == 0; }
  // Tells how the round's wait ended.
  void record_wait(bool complete);

  // Down when an answer is overdue and nothing was heard meanwhile; up again with the next frame.
  DraftState update_state(Clock::time_point now);

  uint64_t num_deadline_misses() const { return num_deadline_misses_; }
  uint64_t num_dropped_frames() const { return num_dropped_frames_; }
  // Whole frames, header included.
  uint64_t num_sent_bytes() const { return num_sent_bytes_; }
  uint64_t num_received_bytes() const { return num_received_bytes_; }
  double draft_step_s() const { return draft_step_s_; }  // moving average; 0 = not known

 private:
  void record_answer(const PackedReply& reply, Clock::time_point now);

  World& world_;
  const int draft_rank_;
  const uint32_t epoch_;
  const double patience_s_;
  uint64_t next_serial_ = 1;
  // A request that must be answered.
  struct Asked {
    uint64_t serial = 0;
    Clock::time_point sent_at{};
    bool is_urgent = false;              // the round waits for it
    std::vector<uint64_t> sequence_ids;  // for which something was asked
  };
  void forget(const std::vector<uint64_t>& closed);

  std::deque<Asked> unanswered_;  // oldest first
  uint64_t urgent_serial_ = 0;    // of the last urgent one
  Clock::time_point last_sent_at_{};
  std::optional<Clock::time_point> last_tokens_at_;  // of its answers so far
  double tokens_gap_s_ = 0;                          // moving average of the time between them
  std::optional<Clock::time_point>
      waiting_since_;    // oldest moment from which nothing was heard though asked
  double answer_s_ = 0;  // moving average of the time from request to answer
  double draft_step_s_ = 0;
  double down_after_s_;  // grows when a draft that counted as down turns out to be slow
  int num_misses_in_row_ = 0;
  int num_rounds_to_skip_ = 0;
  DraftState state_ = DraftState::kUp;
  uint64_t num_deadline_misses_ = 0;
  uint64_t num_dropped_frames_ = 0;
  uint64_t num_sent_bytes_ = 0;
  uint64_t num_received_bytes_ = 0;
};

}  // namespace outrider
