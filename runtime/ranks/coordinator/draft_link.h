// One draft as the coordinator sees it: where frames go and come from. Behind it is a rank of the
// job, or a TCP connection (draft_server.h). Nothing here ever waits. Used on the round's thread.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "runtime/comm/world/world.h"

namespace outrider {

class DraftLink {
 public:
  virtual ~DraftLink() = default;
  virtual void post(Bytes frame) = 0;
  virtual std::optional<Bytes> poll() = 0;
  virtual size_t num_unsent_bytes() = 0;
  // The other end is gone and does not come back by this link.
  virtual bool is_closed() const { return false; }
  // To watch in waits beside the world's messages; -1: none.
  virtual int descriptor() const { return -1; }
};

class RankDraftLink final : public DraftLink {
 public:
  RankDraftLink(World& world, int rank) : world_(world), rank_(rank) {}
  void post(Bytes frame) override { world_.post(rank_, std::move(frame)); }
  std::optional<Bytes> poll() override { return world_.poll(rank_); }
  size_t num_unsent_bytes() override { return world_.num_unsent_bytes(rank_); }

 private:
  World& world_;
  const int rank_;
};

}  // namespace outrider
