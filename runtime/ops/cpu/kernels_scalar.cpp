// Scalar kernels: the definition of every result, and the way to run on a CPU without AVX2. A
// 16-lane vector is an array; fma is the library's, which rounds once on every machine. Called
// through KernelTable only.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/half.h"

#define OUTRIDER_INLINE inline
#define OUTRIDER_NOINLINE

namespace outrider::ops::cpu::scalar {
namespace {

struct Lanes {
  float at[16];
};

constexpr int kScoreQueries = 1;
constexpr int kScoreVectors = 1;
constexpr bool kFewRegisters = true;
constexpr int kMostRows = 1;
constexpr int vectors_for_rows(int) { return 1; }

template <typename Function>
inline Lanes each(Function function) {
  Lanes result;
  for (int i = 0; i < 16; ++i) result.at[i] = function(i);
  return result;
}

inline Lanes constant(float value) {
  return each([&](int) { return value; });
}
inline Lanes zero() { return constant(0.0f); }
inline Lanes broadcast(const float* x) { return constant(*x); }
void store_high_halves(uint16_t* x, const Lanes& value) {
  for (int lane = 0; lane < 16; ++lane) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value.at[lane], sizeof(bits));
    x[lane] = static_cast<uint16_t>(bits >> 16);
  }
}
inline Lanes load(const float* x) {
  return each([&](int i) { return x[i]; });
}
inline Lanes load_partial(const float* x, int count) {
  return each([&](int i) { return i < count ? x[i] : 0.0f; });
}
// Of bf16 and of integers, as floats.
inline float widen(uint16_t x) { return bf16_to_float(x); }
inline float widen(int8_t x) { return static_cast<float>(x); }
template <typename Element>
Lanes load_partial(const Element* x, int count) {
  return each([&](int i) { return i < count ? widen(x[i]) : 0.0f; });
}
template <typename Element>
Lanes load(const Element* x) {
  return load_partial(x, 16);
}
inline void store_partial(float* x, const Lanes& value, int count) {
  for (int i = 0; i < count; ++i) x[i] = value.at[i];
}
inline void store(float* x, const Lanes& value) { store_partial(x, value, 16); }
inline Lanes add(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.at[i] + b.at[i]; });
}
inline Lanes sub(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.at[i] - b.at[i]; });
}
inline Lanes mul(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.at[i] * b.at[i]; });
}
inline Lanes div(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.at[i] / b.at[i]; });
}
inline Lanes max(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; });
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each([&](int i) { return __builtin_fmaf(a.at[i], b.at[i], c.at[i]); });
}

// Denormals as zeros, in and out, like the instructions that products of rounded activations must
// equal. They look at a result before it is rounded to the few bits of a denormal: one that only
// that rounding lifts to the smallest normal number is a zero too.
inline unsigned begin_flushing() { return 0; }
inline void end_flushing(unsigned) {}
inline float flushed(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7F800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : x;
}
inline float fma_flushed(float x, float y, float z) {
  constexpr float kSmallest = 0x1p-126f;
  const float a = flushed(x);
  const float b = flushed(y);
  const float c = flushed(z);
  const float sum = __builtin_fmaf(a, b, c);
  if (sum == 0.0f || !(__builtin_fabsf(sum) <= kSmallest)) return sum;
  const float scaled = __builtin_fmaf(a * 0x1p32f, b, c * 0x1p32f);
  return __builtin_fabsf(scaled) < kSmallest * 0x1p32f ? __builtin_copysignf(0.0f, sum) : sum;
}
inline Lanes fma_flushing(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each([&](int i) { return fma_flushed(a.at[i], b.at[i], c.at[i]); });
}
inline Lanes add_flushing(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return flushed(flushed(a.at[i]) + flushed(b.at[i])); });
}
inline Lanes round_to_bf16(const Lanes& x) {
  return each([&](int i) { return bf16_to_float(float_to_bf16(flushed(x.at[i]))); });
}

inline Lanes clamp_keeping_nan(const Lanes& x, float low, float high) {
  return each([&](int i) { return x.at[i] < low ? low : x.at[i] > high ? high : x.at[i]; });
}

// y * 2^n, n being the low bits of shifted = 1.5 * 2^23 + n; in two factors, each within the
// exponent's range.
inline float scale_one(float y, float shifted) {
  const int32_t n = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - 0x4B400000u);
  const int32_t half = n >> 1;
  const uint32_t first = (static_cast<uint32_t>(half) + 127u) << 23;
  const uint32_t second = (static_cast<uint32_t>(n) - static_cast<uint32_t>(half) + 127u) << 23;
  return y * std::bit_cast<float>(first) * std::bit_cast<float>(second);
}
inline Lanes scale_by_power_of_two(const Lanes& y, const Lanes& shifted) {
  return each([&](int i) { return scale_one(y.at[i], shifted.at[i]); });
}

inline void load_bf16_pair(const char* at, Lanes& low, Lanes& high) {
  uint32_t both[16];
  std::memcpy(both, at, sizeof(both));
  low = each([&](int i) { return std::bit_cast<float>(both[i] << 16); });
  high = each([&](int i) { return std::bit_cast<float>(both[i] & 0xFFFF0000u); });
}
inline Lanes load_f16(const char* at) {
  uint16_t bits[16];
  std::memcpy(bits, at, sizeof(bits));
  return each([&](int i) { return f16_to_float(bits[i]); });
}
inline void prefetch(const char*) {}
inline void prefetch_far(const void*) {}

inline float fold_add(Lanes x) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) x.at[i] += x.at[i + width];
  }
  return x.at[0];
}
inline float fold_max(Lanes x) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) x.at[i] = x.at[i] > x.at[i + width] ? x.at[i] : x.at[i + width];
  }
  return x.at[0];
}
// Lanes below first and from last on become -inf.
inline Lanes keep_lanes(const Lanes& x, int first, int last) {
  return each([&](int i) { return i >= first && i < last ? x.at[i] : -__builtin_inff(); });
}

// Rows become columns.
inline void transpose(Lanes (&rows)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) std::swap(rows[i].at[j], rows[j].at[i]);
  }
}

template <typename Element>
void pack(Element* out, const char* const* rows, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    for (int lane = 0; lane < kPackRows; ++lane) {
      std::memcpy(out + i * kPanel + lane,
                  rows[lane] + i * static_cast<int64_t>(sizeof(Element)),
                  sizeof(Element));
    }
  }
}
void pack_dwords(uint32_t* out, const char* const* rows, int64_t count) { pack(out, rows, count); }
void pack_words(uint16_t* out, const char* const* rows, int64_t count) { pack(out, rows, count); }

uint32_t read_stream(const void* data, int64_t num_bytes) {
  const char* at = static_cast<const char*>(data);
  uint64_t mix[4] = {};
  for (int64_t i = 0; i < num_bytes; i += 32) {
    uint64_t words[4];
    std::memcpy(words, at + i, sizeof(words));
    for (int lane = 0; lane < 4; ++lane) mix[lane] ^= words[lane];
  }
  const uint64_t all = mix[0] ^ mix[1] ^ mix[2] ^ mix[3];
  return static_cast<uint32_t>(all ^ (all >> 32));
}

#include "runtime/ops/cpu/kernels_body.h"

}  // namespace
}  // namespace outrider::ops::cpu::scalar

namespace outrider::ops::cpu {
const KernelTable kScalarKernels = scalar::kernels_with(nullptr);
}  // namespace outrider::ops::cpu
