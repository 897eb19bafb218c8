// How ranks exchange parts of a sum through memory that all of them can write, without locks or
// counters between them. Every word carries its own arrival: buffers begin full of kEmptyWord, a
// rank writes its part into everybody's buffer, and who reads waits until the word is another.
// Three buffers take turns: round s uses buffer s % 3 and, while it waits, empties the rank's own
// buffer of round s - 1. That one is written again in round s + 2, by a rank that has seen our part
// of round s + 1, which we send after round s has ended: so no word is emptied after it was filled.
// One fence is needed for that, between round s and what a thread sends in round s + 1; words that
// carry their own arrival need none (tests/gpu/exchange_model_test.cpp tries all orders).
//
// One-shot: everyone sends its part to everyone and folds all of it (one hop). Two-shot: everyone
// sends each rank its share, that rank folds it and sends the sums to everyone (two hops, but each
// value crosses a link only twice). Both fold the same values in the same order: the same bits.
// A row of fewer vectors than ranks goes in one shot: each rank hears of each other in every round.
//
// Templates over `Memory`, the access to words that others read or write at the same time:
//   Vector4 load(const Vector4*), void store(Vector4*, Vector4), uint32_t load(const uint32_t*),
//   void store(uint32_t*, uint32_t)
//   void fence()        for all devices, what this thread and the launches before read and wrote
//                       comes before what it does next
//   void prefetch(const void*)  the line at it comes near
//   uint64_t now_ns(), void pause()
// so that the tests run the same code with threads as ranks.
//
// Loops over vectors stay rolled: nothing passes a volatile access, so flat ones only take
// registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/numbers/exact_math.h"
#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/exchange.h"

namespace outrider::gpu {

OUTRIDER_DEVICE uint32_t word_sum(uint32_t a, uint32_t b) {
  return bits_of(exact_add(float_of(a), float_of(b)));
}
OUTRIDER_DEVICE Vector4 sum_of(const Vector4& a, const Vector4& b) {
  return {word_sum(a.x, b.x), word_sum(a.y, b.y), word_sum(a.z, b.z), word_sum(a.w, b.w)};
}

// A stretch of a slot, the same on all ranks.
struct ExchangeRow {
  uint32_t first = 0;  // vectors
  uint32_t num_vectors = 0;
};

// A thread of a launch of view.num_blocks blocks.
struct ExchangeThread {
  uint32_t block = 0;
  uint32_t thread = 0;  // of the block's num_threads
  uint32_t num_threads = 1;
};

// One thread's part in one round. The calls of a round, each for all of the block's rows, in this
// order: send(), clear(), fold_share(), collect(). load(v): vector v of the row of this rank's
// part. keep(v, sum): takes vector v of the sums. Vector v is the same thread's in all of them.
// After a wait was given up the sums are undefined.
template <typename Memory>
class ExchangeRound {
 public:
  // num_vectors: that the round uses of a slot, the same on all ranks.
  OUTRIDER_DEVICE ExchangeRound(const ExchangeView& view,
                                const ExchangeKind& kind,
                                const ExchangeThread& thread,
                                uint32_t num_vectors)
      : view_(view),
        kind_(kind),
        block_(thread.block),
        thread_(thread.thread),
        num_threads_(thread.num_threads),
        num_vectors_(num_vectors),
        buffer_(memory_.load(&view.state->blocks[block_].buffer)),
        last_vectors_(memory_.load(&view.state->blocks[block_].last_vectors)),
        is_broken_(memory_.load(&view.state->is_broken) != 0) {}

  template <typename Load>
  OUTRIDER_DEVICE void send(ExchangeRow row, const Load& load) {
    const bool two_shots = takes_two_shots(row);
    for (int32_t i = 1; i < view_.size; ++i) {
      const int32_t to = (view_.rank + i) % view_.size;  // not all to the same one at once
      const uint32_t begin = two_shots ? share(row, to) : 0;
      const uint32_t end = two_shots ? share(row, to + 1) : row.num_vectors;
      Vector4* const slot = slot_of(to, view_.rank) + row.first;
      OUTRIDER_ROLLED
      for (uint32_t v = begin + thread_; v < end; v += num_threads_) {
        put(slot + v, sendable(load(v)));
      }
    }
  }

  template <typename Load>
  OUTRIDER_DEVICE void fold_share(ExchangeRow row, const Load& load) {
    if (!takes_two_shots(row)) return;
    const uint32_t end = share(row, view_.rank + 1);
    OUTRIDER_ROLLED
    for (uint32_t v = share(row, view_.rank) + thread_; v < end; v += num_threads_) {
      const Vector4 sum = fold(row.first + v, load(v));
      for (int32_t i = 0; i < view_.size; ++i) {
        const int32_t to = (view_.rank + i) % view_.size;
        put(slot_of(to, view_.size) + row.first + v, sum);
      }
    }
  }

  template <typename Load, typename Keep>
  OUTRIDER_DEVICE void collect(ExchangeRow row, const Load& load, const Keep& keep) {
    if (!takes_two_shots(row)) {
      OUTRIDER_ROLLED
      for (uint32_t v = thread_; v < row.num_vectors; v += num_threads_) {
        keep(v, fold(row.first + v, load(v)));
      }
      return;
    }
    const Vector4* const sums = slot_of(view_.rank, view_.size) + row.first;
    for (int32_t of = 0; of < view_.size; ++of) {
      const uint32_t end = share(row, of + 1);
      OUTRIDER_ROLLED
      for (uint32_t v = share(row, of) + thread_; v < end; v += num_threads_) {
        Vector4 sum = memory_.load(sums + v);
        await(sums + v, &sum, &view_.report->are_sums_late[of], view_.sums_limit_ns);
        keep(v, sum);
      }
    }
  }

  // The thread's share of emptying the buffer of the round before.
  OUTRIDER_DEVICE void clear() {
    const uint32_t buffer = (buffer_ + kNumExchangeBuffers - 1) % kNumExchangeBuffers;
    const Vector4 empty = {kEmptyWord, kEmptyWord, kEmptyWord, kEmptyWord};
    for (int32_t slot = 0; slot <= view_.size; ++slot) {
      Vector4* const words = slot_in(buffer, view_.rank, slot);
      OUTRIDER_ROLLED
      for (uint32_t v = thread_of_all(); v < last_vectors_; v += num_of_all()) {
        memory_.store(words + v, empty);
      }
    }
  }

  // The thread's share of what the next launch reads, for blocks that have no rows.
  OUTRIDER_DEVICE void prefetch() {
    const size_t step = size_t{num_of_all()} * kLineBytes;
    for (size_t at = size_t{thread_of_all()} * kLineBytes; at < kind_.next_bytes; at += step) {
      memory_.prefetch(static_cast<const unsigned char*>(kind_.next) + at);
    }
  }

  // Once per block, after all its threads are done with the above.
  OUTRIDER_DEVICE void end() {
    memory_.store(&view_.state->blocks[block_].buffer, (buffer_ + 1) % kNumExchangeBuffers);
    memory_.store(&view_.state->blocks[block_].last_vectors, num_vectors_);
  }

 private:
  static constexpr uint32_t kLooksPerCheck = 64;
  static constexpr uint32_t kLineBytes = 128;

  static OUTRIDER_DEVICE uint32_t word_sendable(uint32_t word) {
    return word == kEmptyWord ? 0 : word;
  }
  static OUTRIDER_DEVICE Vector4 sendable(const Vector4& v) {
    return {word_sendable(v.x), word_sendable(v.y), word_sendable(v.z), word_sendable(v.w)};
  }
  static OUTRIDER_DEVICE bool has_empty(const Vector4& v) {
    return v.x == kEmptyWord || v.y == kEmptyWord || v.z == kEmptyWord || v.w == kEmptyWord;
  }
  OUTRIDER_DEVICE uint32_t thread_of_all() const { return block_ * num_threads_ + thread_; }
  OUTRIDER_DEVICE uint32_t num_of_all() const { return view_.num_blocks * num_threads_; }

  OUTRIDER_DEVICE bool takes_two_shots(ExchangeRow row) const {
    return num_vectors_ >= kind_.two_shot_vectors &&
           row.num_vectors >= static_cast<uint32_t>(view_.size);
  }

  // Into memory of any rank, this one's too: after the thread's one fence.
  OUTRIDER_DEVICE void put(Vector4* to, const Vector4& v) {
    if (!has_fenced_) memory_.fence();
    has_fenced_ = true;
    memory_.store(to, v);
  }

  // The first vector of a row that rank `of` folds.
  OUTRIDER_DEVICE uint32_t share(ExchangeRow row, int32_t of) const {
    const uint64_t all = row.num_vectors;
    return static_cast<uint32_t>(all * static_cast<uint64_t>(of) /
                                 static_cast<uint64_t>(view_.size));
  }
  OUTRIDER_DEVICE Vector4* slot_in(uint32_t buffer, int32_t rank, int32_t slot) const {
    const size_t index = static_cast<size_t>(buffer) * static_cast<size_t>(view_.size + 1) +
                         static_cast<size_t>(slot);
    return view_.memory[rank] + index * view_.slot_vectors;
  }
  OUTRIDER_DEVICE Vector4* slot_of(int32_t rank, int32_t slot) const {
    return slot_in(buffer_, rank, slot);
  }

  // Vector `at` of all ranks' parts, folded. All first looks are under way at once.
  OUTRIDER_DEVICE Vector4 fold(uint32_t at, const Vector4& own) {
    Vector4 parts[kMaxPeers];
    OUTRIDER_UNROLL
    for (int32_t r = 0; r < kMaxPeers; ++r) {
      if (r < view_.size && r != view_.rank) {
        parts[r] = memory_.load(slot_of(view_.rank, r) + at);
      } else {
        parts[r] = sendable(own);
      }
    }
    OUTRIDER_UNROLL
    for (int32_t r = 0; r < kMaxPeers; ++r) {
      if (r >= view_.size || r == view_.rank) continue;
      await(slot_of(view_.rank, r) + at, &parts[r], &view_.report->is_part_late[r], view_.limit_ns);
    }
    if (kind_.in_tree) {
      OUTRIDER_UNROLL
      for (int32_t step = 1; step < kMaxPeers; step *= 2) {
        OUTRIDER_UNROLL
        for (int32_t left = 0; left + step < kMaxPeers; left += 2 * step) {
          if (left + step < view_.size) parts[left] = sum_of(parts[left], parts[left + step]);
        }
      }
    } else {
      OUTRIDER_UNROLL
      for (int32_t r = 1; r < kMaxPeers; ++r) {
        if (r < view_.size) parts[0] = sum_of(parts[0], parts[r]);
      }
    }
    return parts[0];
  }

  // Looks until all four words are there.
  OUTRIDER_DEVICE void await(const Vector4* from,
                             Vector4* value,
                             uint32_t* is_late,
                             uint64_t limit_ns) {
    if (is_broken_ || !has_empty(*value)) return;
    const uint64_t begin = memory_.now_ns();
    for (uint32_t looks = 1;; ++looks) {
      *value = memory_.load(from);
      if (!has_empty(*value)) return;
      memory_.pause();
      if (looks % kLooksPerCheck != 0) continue;
      if (memory_.load(&view_.report->stop) != 0 || memory_.load(&view_.state->is_broken) != 0)
        break;
      if (memory_.now_ns() - begin > limit_ns) {
        memory_.store(is_late, 1);
        break;
      }
    }
    is_broken_ = true;
    memory_.store(&view_.state->is_broken, 1);
    memory_.store(&view_.report->is_broken, 1);
  }

  const ExchangeView& view_;
  const ExchangeKind& kind_;
  Memory memory_;
  const uint32_t block_;
  const uint32_t thread_;
  const uint32_t num_threads_;
  const uint32_t num_vectors_;
  const uint32_t buffer_;
  const uint32_t last_vectors_;
  bool is_broken_;
  bool has_fenced_ = false;
};

}  // namespace outrider::gpu
