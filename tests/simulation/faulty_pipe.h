// One direction of the draft's link, as bad as it was drawn: frames are lost, come twice, late and
// out of order, cut or with a wrong bit, or with another life's epoch. Time is given by who asks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "runtime/comm/wire.h"
#include "tests/simulation/setting.h"

namespace outrider::test {

class FaultyPipe {
 public:
  FaultyPipe(const LinkFaults& faults, uint64_t seed) : faults_(faults), dice_(seed) {}

  void send(Bytes frame, int64_t now_ns);
  // As it is: what the end of a job takes.
  void send_whole(Bytes frame, int64_t now_ns) { keep(std::move(frame), now_ns); }
  std::optional<Bytes> receive(int64_t now_ns);
  // When the next one is there, if any is on its way.
  std::optional<int64_t> next_ns() const;
  void clear();
  size_t num_bytes() const { return num_bytes_; }  // on their way
  uint64_t num_faults() const { return num_faults_; }

 private:
  void keep(Bytes frame, int64_t due_ns);

  const LinkFaults faults_;
  Dice dice_;
  std::multimap<int64_t, Bytes> frames_;  // by the time they are there; of equals in order
  size_t num_bytes_ = 0;
  uint64_t num_faults_ = 0;
};

}  // namespace outrider::test
