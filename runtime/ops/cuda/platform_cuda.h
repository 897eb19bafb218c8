// The words of platform.h on a real device, sm_80 and later. For nvcc only.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/numbers/exact_math.h"
#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/launch_shape.h"

// Threads of a block at most; then, if said, blocks of a multiprocessor at least.
#define OUTRIDER_KERNEL(...) __global__ __launch_bounds__(__VA_ARGS__)
#define OUTRIDER_DEVICE __device__ __forceinline__
// Of an argument with a TileMap in it, which copies read where it lies.
#define OUTRIDER_ARGUMENT const __grid_constant__
// The loop that follows is laid out flat: for arrays that are to stay in registers.
#define OUTRIDER_UNROLL _Pragma("unroll")
// The loop that follows stays one.
#define OUTRIDER_ROLLED _Pragma("unroll 1")

namespace outrider::gpu {

// ---- launching
cudaStream_t native_stream(Stream& stream);  // cuda_device.cu; also chooses its device
bool overlap_allowed(Stream& stream);        // cuda_device.cu: programmatic dependent launch is on
size_t block_shared_bytes(Stream& stream);   // cuda_device.cu: shared memory of a block at most

// What copy_tiles() copies from.
struct TileMap {
  PackedTiles tiles;
  CUtensorMap map;  // from sm_90 on
};
TileMap make_tile_map(Stream& stream, const PackedTiles& tiles);  // cuda_device.cu

inline void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  throw Error(std::string("the GPU failed at ") + what + ": " + cudaGetErrorString(result));
}

// Of a multiprocessor's fast memory, what is shared memory and not first-level cache, in percent of
// the most: the same for all kernels, since a multiprocessor changes it only when it is empty.
inline constexpr int kSharedCarveout = cudaSharedmemCarveoutMaxShared;

template <typename Args>
void launch(Stream& stream, void (*kernel)(Args), const LaunchShape& shape, const Args& args) {
  constexpr size_t kSharedWithoutAsking = 48 << 10;
  const cudaStream_t queue = native_stream(stream);  // what is asked for is of its device
  const auto ask = [kernel](cudaFuncAttribute attribute, int value) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value),
               "asking for shared memory");
  };
  ask(cudaFuncAttributePreferredSharedMemoryCarveout, kSharedCarveout);
  if (shape.shared_bytes > kSharedWithoutAsking) {
    ask(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.grid.x, shape.grid.y, shape.grid.z);
  config.blockDim = dim3(shape.threads, 1, 1);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = queue;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = shape.overlaps && overlap_allowed(stream) ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args), "a launch");
}

// ---- who am I
OUTRIDER_DEVICE uint32_t thread_id() { return threadIdx.x; }
OUTRIDER_DEVICE uint32_t num_threads() { return blockDim.x; }
OUTRIDER_DEVICE uint32_t lane_id() { return threadIdx.x % 32; }
OUTRIDER_DEVICE uint32_t warp_id() { return threadIdx.x / 32; }
// warp_id(), asked by all lanes together, so that the compiler knows it for the same in all.
OUTRIDER_DEVICE uint32_t uniform_warp_id() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }
OUTRIDER_DEVICE Grid block_id() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
OUTRIDER_DEVICE Grid num_blocks() { return {gridDim.x, gridDim.y, gridDim.z}; }

// ---- a block together
// The launch's shared_bytes, 256-byte aligned.
template <typename T>
OUTRIDER_DEVICE T* shared_memory() {
  extern __shared__ __align__(256) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}
OUTRIDER_DEVICE void sync_block() { __syncthreads(); }
OUTRIDER_DEVICE void sync_warp() { __syncwarp(); }
// The same of whole warps, `threads` of the block: of its first, its next, and so on.
OUTRIDER_DEVICE void sync_group(uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / threads), "r"(threads) : "memory");
}

// ---- a warp together. T: 4 or 8 bytes.
template <typename T>
OUTRIDER_DEVICE T shuffle_xor(T value, uint32_t mask) {
  return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
}
OUTRIDER_DEVICE uint32_t ballot(bool vote) { return __ballot_sync(0xffffffffu, vote); }
OUTRIDER_DEVICE int32_t count_bits(uint32_t word) { return __popc(word); }

// ---- memory
OUTRIDER_DEVICE void atomic_add(uint32_t* to, uint32_t value) { atomicAdd(to, value); }
OUTRIDER_DEVICE void atomic_add(uint64_t* to, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}
OUTRIDER_DEVICE void atomic_max(uint64_t* to, uint64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}
// What was there before.
OUTRIDER_DEVICE uint32_t atomic_next(uint32_t* to) { return atomicAdd(to, 1u); }
// This thread's writes are seen by other blocks before what it writes afterwards.
OUTRIDER_DEVICE void publish_writes() { __threadfence(); }

// 8 bytes that other blocks on the same processor read too (activations). Keeps its place among
// asynchronous copies.
OUTRIDER_DEVICE Vector2 load_in_order(const Vector2* from) {
  Vector2 v;
  asm volatile("ld.global.ca.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
  return v;
}

// Copies to shared memory that this thread waits for later. Both addresses 16-byte aligned;
// without `valid` zeros arrive.
OUTRIDER_DEVICE void copy_async_16(void* shared, const void* global, bool valid = true) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid ? 16 : 0)
      : "memory");
}
// Ends a group of copies; wait_copies<N>: until at most the N latest groups are under way. Then
// sync_block() before other threads read what came.
OUTRIDER_DEVICE void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kMostUnderWay>
OUTRIDER_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kMostUnderWay) : "memory");
}

// Copies that a warp makes together of what nobody else reads (weights): of whole 16 bytes between
// 16-byte aligned addresses. From sm_90 on one lane asks for all of a copy at once, and `arrival`
// counts its bytes; below, every lane asks for some of it, and groups are counted.
// One warp says what is expected of each (expect_bytes).
OUTRIDER_DEVICE void init_arrivals(uint64_t* arrivals, int count) {
#if __CUDA_ARCH__ >= 900
  if (lane_id() == 0) {
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(arrivals + i));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(1) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
#endif
}
// All that a turn's copies by this warp bring together.
OUTRIDER_DEVICE void expect_bytes(uint64_t* arrival, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(arrival));
  if (lane_id() == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
  }
#endif
}
OUTRIDER_DEVICE void copy_by_warp(Vector4* shared,
                                  const Vector4* global,
                                  uint32_t bytes,
                                  uint64_t* arrival) {
#if __CUDA_ARCH__ >= 900
  if (lane_id() == 0) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(arrival));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(global),
        "r"(bytes),
        "r"(at)
        : "memory");
  }
#else
  for (uint32_t i = lane_id(); i < bytes / sizeof(Vector4); i += 32) {
    copy_async_16(shared + i, global + i);
  }
#endif
}
#if __CUDA_ARCH__ >= 900
// The part of the tiles that begins with that unit and tile, to [part_tiles][part_units] in shared
// memory, 128-byte aligned. What is beyond the tiles arrives as zeros.
OUTRIDER_DEVICE void copy_tiles(
    Vector4* shared, const TileMap& from, int32_t unit, int32_t tile, uint64_t* arrival) {
  if (lane_id() != 0) return;
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(arrival));
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&from.map),
      "r"(0),
      "r"(unit),
      "r"(tile),
      "r"(at)
      : "memory");
}
#endif
// Ends the copies of a turn, also of one without any.
OUTRIDER_DEVICE void end_copies_by_warp() {
#if __CUDA_ARCH__ < 900
  end_copy_group();
#endif
}
// Until all lanes see what the oldest of kMostUnderWay + 1 turns has brought; `round`: how often
// its arrival has been waited for.
template <int kMostUnderWay>
OUTRIDER_DEVICE void wait_copies_by_warp(uint64_t* arrival, uint32_t round) {
#if __CUDA_ARCH__ >= 900
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(arrival));
  asm volatile(
      "{\n .reg .pred is_there;\n"
      "again:\n mbarrier.try_wait.parity.shared::cta.b64 is_there, [%0], %1;\n"
      " @!is_there bra again;\n}" ::"r"(at),
      "r"(round % 2)
      : "memory");
#else
  wait_copies<kMostUnderWay>();
  __syncwarp();
#endif
}

// Words that other launches, devices or the host read and write meanwhile; the Memory of
// exchange_protocol.h.
struct WatchedMemory {
  OUTRIDER_DEVICE Vector4 load(const Vector4* from) const {
    Vector4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
  }
  OUTRIDER_DEVICE void store(Vector4* to, const Vector4& v) const {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                 "r"(v.x),
                 "r"(v.y),
                 "r"(v.z),
                 "r"(v.w)
                 : "memory");
  }
  OUTRIDER_DEVICE uint32_t load(const uint32_t* from) const {
    return *static_cast<const volatile uint32_t*>(from);
  }
  OUTRIDER_DEVICE void store(uint32_t* to, uint32_t value) const {
    *static_cast<volatile uint32_t*>(to) = value;
  }
  OUTRIDER_DEVICE void fence() const { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
  // Asks for the cache line at `from`, for a launch that follows.
  OUTRIDER_DEVICE void prefetch(const void* from) const {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  }
  OUTRIDER_DEVICE uint64_t now_ns() const {
    uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  OUTRIDER_DEVICE void pause() const {}
};

// ---- matrix instruction: d[16, 8] += a[16, 16] b[16, 8], fragments as PTX lays them out for
// mma.m16n8k16 (gpu/tiles.h has the map)
OUTRIDER_DEVICE void multiply_bf16(float (&d)[4], const Vector4& a, const Vector2& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}
OUTRIDER_DEVICE void multiply_f16(float (&d)[4], const Vector4& a, const Vector2& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}
#if __CUDA_ARCH__ >= 900
// ---- matrix instruction of four warps: of each warp d[16, 64] += a[16, 16] b[16, 64], where b is
// in shared memory, a step of a group of activations (gpu/tiles.h). It is begun only:
// between begin_group_products() and end_group_products(), and until a wait, nobody touches a, b or
// d. Registers that other instructions have written are ordered before it by the former.
OUTRIDER_DEVICE void begin_group_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
OUTRIDER_DEVICE void end_group_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
OUTRIDER_DEVICE void wait_group_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// The matrix descriptor: address and distance of tiles in 16 bytes, swizzle of 32 bytes.
OUTRIDER_DEVICE uint64_t group_rows(const void* shared) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return uint64_t{3} << 62 | uint64_t{256 / 16} << 32 | uint64_t{1} << 16 | (at & 0x3FFFF) >> 4;
}
#define OUTRIDER_SUMS(d, t) "+f"((d)[t][0]), "+f"((d)[t][1]), "+f"((d)[t][2]), "+f"((d)[t][3])
#define OUTRIDER_MULTIPLY_BY_GROUP(type)                                             \
  asm volatile(                                                                      \
      "{.reg .pred adds; setp.eq.u32 adds, 0, 0;\n"                                  \
      " wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                   \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20," \
      "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, adds,"  \
      " 1, 1, 0;}"                                                                   \
      : OUTRIDER_SUMS(d, 0),                                                         \
        OUTRIDER_SUMS(d, 1),                                                         \
        OUTRIDER_SUMS(d, 2),                                                         \
        OUTRIDER_SUMS(d, 3),                                                         \
        OUTRIDER_SUMS(d, 4),                                                         \
        OUTRIDER_SUMS(d, 5),                                                         \
        OUTRIDER_SUMS(d, 6),                                                         \
        OUTRIDER_SUMS(d, 7)                                                          \
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b))
template <bool kIsBF16>
OUTRIDER_DEVICE void multiply_by_group(float (*d)[4], const Vector4& a, uint64_t b) {
  if constexpr (kIsBF16) {
    OUTRIDER_MULTIPLY_BY_GROUP("bf16");
  } else {
    OUTRIDER_MULTIPLY_BY_GROUP("f16");
  }
}
#undef OUTRIDER_MULTIPLY_BY_GROUP
#undef OUTRIDER_SUMS
#endif
// Two products of bf16, low halves and high halves, each rounded to nearest even.
OUTRIDER_DEVICE uint32_t multiply_pair_bf16(uint32_t a, uint32_t b) {
  uint32_t d;
  asm volatile("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
  return d;
}
// Four 8x8 tiles of 16-bit values from shared memory, as ldmatrix.x4 does: lane l gives the address
// of row l % 8 of tile l / 8 and gets of tile i, in element i of the result, columns (l % 4) * 2
// and + 1 of row l / 4; transposed: rows (l % 4) * 2 and + 1 of column l / 4.
OUTRIDER_DEVICE Vector4 load_tiles(const void* shared_row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  Vector4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
OUTRIDER_DEVICE Vector4 load_tiles_transposed(const void* shared_row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  Vector4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

// Two floats as 16-bit values in one word, to nearest even; `low` comes first in memory.
OUTRIDER_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
OUTRIDER_DEVICE uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// ---- overlapping launches
// Until the launch before has ended and what it wrote can be seen (nothing to wait for without
// overlap).
OUTRIDER_DEVICE void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900 && !defined(OUTRIDER_TEST_UNWAITED)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next launch may begin as soon as every block has said so.
OUTRIDER_DEVICE void let_successor_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
#if defined(OUTRIDER_TEST_LATE)
  // For tests (liboutrider_cuda.so in the folder late): all that this kernel does comes 20 us after
  // its successor may have begun, so that a successor that does not wait reads what is not there
  // yet.
  for (int64_t begin = clock64(); clock64() - begin < 40000;) __nanosleep(500);
#endif
}

// ---- arithmetic: one rounding each, the same on both sides but for exp (within 2 units in the
// last place)
OUTRIDER_DEVICE float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
OUTRIDER_DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
OUTRIDER_DEVICE float square_root(float a) { return __fsqrt_rn(a); }
OUTRIDER_DEVICE float exponential(float a) { return expf(a); }

}  // namespace outrider::gpu
