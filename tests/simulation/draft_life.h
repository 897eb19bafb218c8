// The draft rank of the simulation that needs no threads: the draft worker with its model, stepped
// as time goes by. It dies, stands still, comes back as another life or joins late, and lies.
#pragma once

#include <memory>
#include <optional>

#include "runtime/ranks/draft/worker.h"
#include "runtime/ranks/messages/round_wire.h"
#include "tests/simulation/faulty_pipe.h"
#include "tests/simulation/witness.h"

namespace outrider::test {

class DraftLife {
 public:
  DraftLife(const Setting& setting, Witness& witness);
  ~DraftLife();

  FaultyPipe& inbox() { return inbox_; }
  FaultyPipe& outbox() { return outbox_; }
  // All that happens up to this time.
  void live_until(int64_t now_ns);

  uint64_t num_lives() const { return num_lives_; }
  uint64_t num_lies() const { return num_lies_; }

 private:
  void begin_life(int64_t now_ns);
  void die(int64_t now_ns);
  void check_books();
  bool take_frames(int64_t now_ns);
  void work(int64_t now_ns);
  void say(FrameKind kind, Bytes payload, int64_t now_ns);
  void send_reply(int64_t now_ns);

  const Setting& setting_;
  Witness& witness_;
  uint32_t epoch_;  // of the life
  Dice dice_;
  FaultyPipe inbox_;
  FaultyPipe outbox_;
  std::unique_ptr<ToyModel> model_;
  std::unique_ptr<DraftWorker> worker_;  // null: dead
  int64_t free_at_ns_ = 0;               // busy or still until then; dead: comes back then
  int64_t last_sent_ns_ = 0;
  uint64_t num_lives_ = 0;
  uint64_t num_lies_ = 0;
};

// For the draft worker of that setting.
DraftWorker::Options worker_options(const Setting& setting);
// Changes something in some of the blocks; returns in how many.
uint64_t tell_lies(DraftReply& reply, int32_t permille, Dice& dice);
DraftReply unpacked(const PackedReply& reply);

}  // namespace outrider::test
