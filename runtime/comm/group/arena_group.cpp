// See arena_group.h. Every member has two slots and a count of what it has published. To exchange,
// a member fills one of its slots, raises its count, waits until all counts are that high and reads
// the others' slots; the next exchange uses the other slot. So one wait is enough: whoever sees a
// member's count n knows that it has finished reading what was published as n - 1, and that slot is
// the one that n + 1 overwrites.
#include "runtime/comm/group/arena_group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/numbers/fold_tree.h"
#include "runtime/comm/waiting.h"

namespace outrider {
namespace {

// Pieces of larger exchanges: small enough for a core's cache, large enough that the waits between
// them are few. Best of 32 to 256 KB for sums of 1 to 4 MB (bench comm).
constexpr size_t kSlotBytes = size_t{256} << 10;
// A count has cache lines to itself, also from the prefetcher that fetches pairs of them.
constexpr size_t kCountBytes = 128;
constexpr size_t kMemberBytes = kCountBytes + 2 * kSlotBytes;
// Up to here, and for two, every member folds everything; above, each a part for all.
constexpr size_t kFoldAloneBytes = 16 * 1024;
// Looks at a count between two looks at the world.
constexpr int kLooksPerCheck = 64;

class ArenaGroup final : public TargetGroup {
 public:
  explicit ArenaGroup(ArenaMember member) : member_(std::move(member)) {
    OUTRIDER_CHECK(member_.rank >= 0 && member_.rank < member_.size);
    OUTRIDER_CHECK(reinterpret_cast<uintptr_t>(member_.memory) % 64 == 0);
    sequence_ = count_of(member_.rank).load(std::memory_order_relaxed);
  }
  int rank() const override { return member_.rank; }
  int size() const override { return member_.size; }

  void all_reduce_sum(std::span<float> values, Fold order) override {
    if (order == Fold::kTree && size() > 2) {
      reduce(values,
             [this](float* to, size_t begin, size_t count) { fold_tree(to, begin, count); });
    } else {
      reduce_in_order(values, [](float a, float b) { return a + b; });
    }
  }
  void all_reduce_sum(std::span<uint64_t> values) override {
    reduce_in_order(values, [](uint64_t a, uint64_t b) { return a + b; });
  }
  void all_reduce_max(std::span<uint64_t> values) override {
    reduce_in_order(values, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    OUTRIDER_CHECK(all.size() == mine.size() * static_cast<size_t>(size()));
    for (size_t at = 0; at < mine.size(); at += kSlotBytes) {
      const size_t count = std::min(kSlotBytes, mine.size() - at);
      std::memcpy(next_slot(), mine.data() + at, count);
      meet();
      for (int r = 0; r < size(); ++r)
        std::memcpy(all.data() + static_cast<size_t>(r) * mine.size() + at, slot(r), count);
    }
    if (!mine.empty()) member_.check_alive();
  }

 private:
  template <typename T, typename Op>
  void reduce_in_order(std::span<T> values, Op op) {
    reduce(values, [this, op](T* to, size_t begin, size_t count) {
      const T* const first = typed_slot<T>(0) + begin;
      const T* const second = typed_slot<T>(1) + begin;
      for (size_t i = 0; i < count; ++i) to[i] = op(first[i], second[i]);
      for (int r = 2; r < size(); ++r) {
        const T* const from = typed_slot<T>(r) + begin;
        for (size_t i = 0; i < count; ++i) to[i] = op(to[i], from[i]);
      }
    });
  }

  // fold(to, begin, count): elements [begin, begin + count) of all slots into to.
  template <typename T, typename FoldSlots>
  void reduce(std::span<T> values, FoldSlots fold) {
    constexpr size_t kMost = kSlotBytes / sizeof(T);
    for (size_t at = 0; at < values.size(); at += kMost) {
      const std::span<T> piece = values.subspan(at, std::min(kMost, values.size() - at));
      std::memcpy(next_slot(), piece.data(), piece.size_bytes());
      meet();
      if (size() == 2 || piece.size_bytes() <= kFoldAloneBytes) {
        fold(piece.data(), 0, piece.size());
      } else {
        share_fold(piece, fold);
      }
    }
    // After the exchange: the others are not kept waiting by it.
    if (!values.empty()) member_.check_alive();
  }

  template <typename T, typename FoldSlots>
  void share_fold(std::span<T> piece, FoldSlots fold) {
    const auto bound = [&](int r) {
      return piece.size() * static_cast<size_t>(r) / static_cast<size_t>(size());
    };
    const size_t begin = bound(rank());
    fold(reinterpret_cast<T*>(next_slot()) + begin, begin, bound(rank() + 1) - begin);
    meet();
    for (int r = 0; r < size(); ++r)
      std::copy(
          typed_slot<T>(r) + bound(r), typed_slot<T>(r) + bound(r + 1), piece.data() + bound(r));
  }

  // The others read the slots, so the tree works on copies, a cache's worth at a time.
  void fold_tree(float* to, size_t begin, size_t count) {
    constexpr size_t kMostLeaf = 1024;
    const auto num_leaves = static_cast<size_t>(size());
    leaves_.resize(num_leaves * kMostLeaf);
    for (size_t at = 0; at < count; at += kMostLeaf) {
      const size_t part = std::min(kMostLeaf, count - at);
      for (int r = 0; r < size(); ++r) {
        std::copy_n(typed_slot<float>(r) + begin + at,
                    part,
                    leaves_.data() + static_cast<size_t>(r) * part);
      }
      fold_in_tree(leaves_.data(), num_leaves, part);
      std::copy_n(leaves_.data(), part, to + at);
    }
  }

  // Publishes what lies in next_slot() and waits until all have done so.
  void meet() {
    ++sequence_;
    count_of(rank()).store(sequence_, std::memory_order_release);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) await(r);
    }
  }

  void await(int r) {
    const std::atomic_ref<uint64_t> count = count_of(r);
    if (count.load(std::memory_order_acquire) >= sequence_) return;
    Backoff backoff(member_.hot_time);
    for (int looks = 1; count.load(std::memory_order_acquire) < sequence_; ++looks) {
      if (looks % kLooksPerCheck == 0 || backoff.should_check()) member_.check_alive();
      backoff.pause();
    }
  }

  std::byte* memory_of(int r) const {
    return member_.memory + static_cast<size_t>(r) * kMemberBytes;
  }
  std::atomic_ref<uint64_t> count_of(int r) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory_of(r)));
  }
  std::byte* slot_of(int r, uint64_t sequence) const {
    return memory_of(r) + kCountBytes + (sequence % 2) * kSlotBytes;
  }
  std::byte* next_slot() const { return slot_of(rank(), sequence_ + 1); }
  const std::byte* slot(int r) const { return slot_of(r, sequence_); }
  template <typename T>
  const T* typed_slot(int r) const {
    return reinterpret_cast<const T*>(slot(r));
  }

  const ArenaMember member_;
  uint64_t sequence_ = 0;
  std::vector<float> leaves_;
};

}  // namespace

size_t arena_bytes(int num_members) { return static_cast<size_t>(num_members) * kMemberBytes; }

std::unique_ptr<TargetGroup> make_arena_group(ArenaMember member) {
  return std::make_unique<ArenaGroup>(std::move(member));
}

std::chrono::microseconds hot_time_for(int num_ranks_here, int num_cores) {
  return std::chrono::microseconds(num_ranks_here <= num_cores ? 300 : 10);
}

}  // namespace outrider
