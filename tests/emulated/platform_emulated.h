// The words of runtime/ops/cuda/platform.h on the emulated device.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime/base/numbers/exact_math.h"
#include "runtime/ops/half.h"
#include "tests/emulated/machine.h"
#include "tests/emulated/work_queue.h"

#define OUTRIDER_KERNEL(...)
#define OUTRIDER_DEVICE inline
#define OUTRIDER_ARGUMENT const
#define OUTRIDER_UNROLL
#define OUTRIDER_ROLLED

namespace outrider::gpu {

template <typename Args>
void launch(Stream& stream, void (*kernel)(Args), const LaunchShape& shape, const Args& args) {
  emulated::enqueue(stream, [=] { emulated::run(shape, [&] { kernel(args); }); });
}

inline size_t block_shared_bytes(Stream&) { return 227 << 10; }

struct TileMap {
  PackedTiles tiles;
};
inline TileMap make_tile_map(Stream&, const PackedTiles& tiles) { return {tiles}; }

OUTRIDER_DEVICE uint32_t thread_id() { return emulated::place().thread; }
OUTRIDER_DEVICE uint32_t num_threads() { return emulated::place().num_threads; }
OUTRIDER_DEVICE uint32_t lane_id() { return thread_id() % 32; }
OUTRIDER_DEVICE uint32_t warp_id() { return thread_id() / 32; }
OUTRIDER_DEVICE uint32_t uniform_warp_id() { return warp_id(); }
OUTRIDER_DEVICE Grid block_id() { return emulated::place().block; }
OUTRIDER_DEVICE Grid num_blocks() { return emulated::place().grid; }

template <typename T>
OUTRIDER_DEVICE T* shared_memory() {
  return reinterpret_cast<T*>(emulated::shared_bytes());
}
OUTRIDER_DEVICE void sync_block() { emulated::sync_group(num_threads()); }
OUTRIDER_DEVICE void sync_group(uint32_t threads) { emulated::sync_group(threads); }
OUTRIDER_DEVICE void sync_warp() { emulated::warp_together(nullptr, nullptr); }

namespace emulated {
template <typename T>
struct Shuffle {
  T value;
  uint32_t from;
  T result;
};
template <typename T>
void shuffle_lanes(void* const (&lanes)[32]) {
  for (void* lane : lanes) {
    auto& mine = *static_cast<Shuffle<T>*>(lane);
    mine.result = static_cast<Shuffle<T>*>(lanes[mine.from % 32])->value;
  }
}
}  // namespace emulated

template <typename T>
OUTRIDER_DEVICE T shuffle_xor(T value, uint32_t mask) {
  emulated::Shuffle<T> mine = {value, lane_id() ^ mask, value};
  emulated::warp_together(emulated::shuffle_lanes<T>, &mine);
  return mine.result;
}
OUTRIDER_DEVICE uint32_t ballot(bool vote) {
  struct Vote {
    bool vote;
    uint32_t result;
  } mine = {vote, 0};
  emulated::warp_together(
      [](void* const(&lanes)[32]) {
        uint32_t all = 0;
        for (uint32_t i = 0; i < 32; ++i) all |= uint32_t{static_cast<Vote*>(lanes[i])->vote} << i;
        for (void* lane : lanes) static_cast<Vote*>(lane)->result = all;
      },
      &mine);
  return mine.result;
}
OUTRIDER_DEVICE int32_t count_bits(uint32_t word) { return std::popcount(word); }

// Blocks of one launch may run on several OS threads. What is done before an atomic_next() is seen
// by whoever comes later to the same word: more than a real device promises without
// publish_writes().
OUTRIDER_DEVICE void atomic_add(uint32_t* to, uint32_t value) {
  std::atomic_ref(*to).fetch_add(value, std::memory_order_acq_rel);
}
OUTRIDER_DEVICE void atomic_add(uint64_t* to, uint64_t value) {
  std::atomic_ref(*to).fetch_add(value, std::memory_order_acq_rel);
}
OUTRIDER_DEVICE void atomic_max(uint64_t* to, uint64_t value) {
  std::atomic_ref word(*to);
  for (uint64_t found = word.load(); found < value && !word.compare_exchange_weak(found, value);) {
  }
}
OUTRIDER_DEVICE uint32_t atomic_next(uint32_t* to) {
  return std::atomic_ref(*to).fetch_add(1, std::memory_order_acq_rel);
}
OUTRIDER_DEVICE void publish_writes() {}
OUTRIDER_DEVICE Vector2 load_in_order(const Vector2* from) { return *from; }

OUTRIDER_DEVICE void copy_async_16(void* shared, const void* global, bool valid = true) {
  emulated::copy_async_16(shared, global, valid);
}
OUTRIDER_DEVICE void end_copy_group() { emulated::end_copy_group(); }
template <int kMostUnderWay>
OUTRIDER_DEVICE void wait_copies() {
  emulated::wait_copies(kMostUnderWay);
}

// As below sm_90.
OUTRIDER_DEVICE void init_arrivals(uint64_t*, int) {}
OUTRIDER_DEVICE void expect_bytes(uint64_t*, uint32_t) {}
OUTRIDER_DEVICE void copy_by_warp(Vector4* shared,
                                  const Vector4* global,
                                  uint32_t bytes,
                                  uint64_t*) {
  for (uint32_t i = lane_id(); i < bytes / sizeof(Vector4); i += 32) {
    copy_async_16(shared + i, global + i);
  }
}
OUTRIDER_DEVICE void end_copies_by_warp() { end_copy_group(); }
template <int kMostUnderWay>
OUTRIDER_DEVICE void wait_copies_by_warp(uint64_t*, uint32_t) {
  wait_copies<kMostUnderWay>();
  sync_warp();
}

// The other side of a wait is a launch on another OS thread, or another thread of this block.
struct WatchedMemory {
  uint32_t load(const uint32_t* from) const {
    return std::atomic_ref(*const_cast<uint32_t*>(from)).load(std::memory_order_acquire);
  }
  void store(uint32_t* to, uint32_t value) const {
    std::atomic_ref(*to).store(value, std::memory_order_release);
  }
  Vector4 load(const Vector4* from) const {
    return {load(&from->x), load(&from->y), load(&from->z), load(&from->w)};
  }
  void store(Vector4* to, const Vector4& v) const {
    store(&to->x, v.x);
    store(&to->y, v.y);
    store(&to->z, v.z);
    store(&to->w, v.w);
  }
  void fence() const {}  // every access above is one
  void prefetch(const void*) const {}
  uint64_t now_ns() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }
  void pause() const { emulated::yield_thread(); }
};

// The sums inside a real matrix instruction have their own order and rounding; these are in
// ascending order, rounded once at the end. Tests allow for it.
namespace emulated {
struct Multiply {
  float* d;
  const Vector4* a;
  const Vector2* b;
};
void multiply_lanes_bf16(void* const (&lanes)[32]);
void multiply_lanes_f16(void* const (&lanes)[32]);
struct TileLoad {
  const void* row;
  Vector4 result;
};
void load_tiles_of_lanes(void* const (&lanes)[32]);
void load_transposed_tiles_of_lanes(void* const (&lanes)[32]);
}  // namespace emulated

OUTRIDER_DEVICE void multiply_bf16(float (&d)[4], const Vector4& a, const Vector2& b) {
  emulated::Multiply mine = {d, &a, &b};
  emulated::warp_together(emulated::multiply_lanes_bf16, &mine);
}
OUTRIDER_DEVICE void multiply_f16(float (&d)[4], const Vector4& a, const Vector2& b) {
  emulated::Multiply mine = {d, &a, &b};
  emulated::warp_together(emulated::multiply_lanes_f16, &mine);
}
OUTRIDER_DEVICE uint32_t multiply_pair_bf16(uint32_t a, uint32_t b) {
  const auto one = [](uint32_t x, uint32_t y) -> uint32_t {
    return ops::float_to_bf16(ops::bf16_to_float(static_cast<uint16_t>(x)) *
                              ops::bf16_to_float(static_cast<uint16_t>(y)));
  };
  return one(a, b) | one(a >> 16, b >> 16) << 16;
}
OUTRIDER_DEVICE Vector4 load_tiles(const void* shared_row) {
  emulated::TileLoad mine = {shared_row, {}};
  emulated::warp_together(emulated::load_tiles_of_lanes, &mine);
  return mine.result;
}
OUTRIDER_DEVICE Vector4 load_tiles_transposed(const void* shared_row) {
  emulated::TileLoad mine = {shared_row, {}};
  emulated::warp_together(emulated::load_transposed_tiles_of_lanes, &mine);
  return mine.result;
}

OUTRIDER_DEVICE uint32_t pack_bf16(float low, float high) {
  return uint32_t{ops::float_to_bf16(low)} | uint32_t{ops::float_to_bf16(high)} << 16;
}
OUTRIDER_DEVICE uint32_t pack_f16(float low, float high) {
  return uint32_t{ops::float_to_f16(low)} | uint32_t{ops::float_to_f16(high)} << 16;
}

OUTRIDER_DEVICE void wait_for_predecessor() { emulated::wait_for_predecessor(); }
OUTRIDER_DEVICE void let_successor_begin() {}

OUTRIDER_DEVICE float fused_multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
OUTRIDER_DEVICE float divide(float a, float b) { return a / b; }
OUTRIDER_DEVICE float square_root(float a) { return std::sqrt(a); }
OUTRIDER_DEVICE float exponential(float a) { return std::exp(a); }

}  // namespace outrider::gpu
