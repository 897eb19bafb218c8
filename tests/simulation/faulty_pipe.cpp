// See faulty_pipe.h.
#include "tests/simulation/faulty_pipe.h"

#include <cstring>

namespace outrider::test {
namespace {

constexpr size_t kEpochOffset = 7;  // behind magic, version and kind (round_wire.cpp)

}  // namespace

void FaultyPipe::send(Bytes frame, int64_t now_ns) {
  const auto happens = [&](int32_t permille) {
    const bool does = permille > 0 && dice_.chance(permille);
    num_faults_ += does ? 1 : 0;
    return does;
  };
  if (happens(faults_.dropped)) return;
  if (happens(faults_.flipped))
    frame[dice_.bits() % frame.size()] ^= std::byte{1} << dice_.below(8);
  if (happens(faults_.stale)) {
    const auto epoch = static_cast<uint32_t>(dice_.bits() | 0x100);
    std::memcpy(frame.data() + kEpochOffset, &epoch, sizeof(epoch));
  }
  if (happens(faults_.cut)) frame.resize(dice_.bits() % frame.size());
  const auto due = [&] {
    const int32_t extra_us = happens(faults_.late) ? dice_.below(faults_.latest_us + 1) : 0;
    return now_ns + 1000 * int64_t{faults_.usual_us + extra_us};
  };
  if (happens(faults_.doubled)) keep(frame, due());
  keep(std::move(frame), due());
}

void FaultyPipe::keep(Bytes frame, int64_t due_ns) {
  num_bytes_ += frame.size();
  frames_.emplace(due_ns, std::move(frame));
}

std::optional<Bytes> FaultyPipe::receive(int64_t now_ns) {
  if (frames_.empty() || frames_.begin()->first > now_ns) return std::nullopt;
  auto node = frames_.extract(frames_.begin());
  num_bytes_ -= node.mapped().size();
  return std::move(node.mapped());
}

std::optional<int64_t> FaultyPipe::next_ns() const {
  if (frames_.empty()) return std::nullopt;
  return frames_.begin()->first;
}

void FaultyPipe::clear() {
  frames_.clear();
  num_bytes_ = 0;
}

}  // namespace outrider::test
