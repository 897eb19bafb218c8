// Quantised products without vector instructions: the definition of every result (see
// int8_kernels.h).
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/ops/cpu/int8/int8_kernels.h"
#include "runtime/ops/half.h"

#define OUTRIDER_INLINE inline
#define OUTRIDER_NOINLINE

namespace outrider::ops::cpu::int8_scalar {
namespace {

constexpr int kInts = 16;
constexpr int64_t kValueBytes = 1;
constexpr int kMostIntRows = 1;
constexpr int kIntRowsOfGroup = 1;
constexpr int int_vectors_for_rows(int) { return 1; }

struct Ints {
  int32_t at[kInts];
};
struct Floats {
  float at[kInts];
};
struct Bytes {
  uint8_t at[kInts * 4];
};
using Quad = Bytes;
struct Spread {
  int8_t at[4];
};

template <typename Vector, typename Function>
inline Vector each(Function function) {
  Vector result;
  for (int i = 0; i < kInts; ++i) result.at[i] = function(i);
  return result;
}

inline Ints all_ints(int32_t value) {
  return each<Ints>([&](int) { return value; });
}
inline Floats all_floats(float value) {
  return each<Floats>([&](int) { return value; });
}
inline Floats load(const float* x) {
  return each<Floats>([&](int i) { return x[i]; });
}
inline Floats load_halves(const char* at) {
  return each<Floats>([&](int i) {
    uint16_t bits;
    std::memcpy(&bits, at + 2 * i, sizeof(bits));
    return f16_to_float(bits);
  });
}
inline Ints load_signed_bytes(const char* at) {
  return each<Ints>([&](int i) { return int32_t{static_cast<int8_t>(at[i])}; });
}
inline void store(float* x, const Floats& value) { std::memcpy(x, value.at, sizeof(value.at)); }
inline Floats mul(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.at[i] * b.at[i]; });
}
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  return each<Floats>([&](int i) { return __builtin_fmaf(a.at[i], b.at[i], c.at[i]); });
}
inline Floats to_floats(const Ints& a) {
  return each<Floats>([&](int i) { return static_cast<float>(a.at[i]); });
}
inline Floats floats_of_bits(const Ints& a) {
  return each<Floats>([&](int i) { return std::bit_cast<float>(a.at[i]); });
}
inline Ints add_ints(const Ints& a, const Ints& b) {
  return each<Ints>([&](int i) { return a.at[i] + b.at[i]; });
}
inline Ints mul_ints(const Ints& a, const Ints& b) {
  return each<Ints>([&](int i) { return a.at[i] * b.at[i]; });
}
inline Ints load_zeros(const char* zeros) {
  return each<Ints>([&](int i) { return int32_t{static_cast<uint8_t>(zeros[i])}; });
}
inline Bytes load_bytes(const char* at) {
  Bytes bytes;
  std::memcpy(bytes.at, at, sizeof(bytes.at));
  return bytes;
}
inline void keep_in_register(const Bytes&) {}
template <typename Function>
inline Bytes each_byte(Bytes bytes, Function function) {
  for (uint8_t& byte : bytes.at) byte = static_cast<uint8_t>(function(byte));
  return bytes;
}
inline Bytes low_halves(const Bytes& bytes) {
  return each_byte(bytes, [](uint8_t byte) { return byte & 15; });
}
inline Bytes high_halves(const Bytes& bytes) {
  return each_byte(bytes, [](uint8_t byte) { return byte >> 4; });
}
// Bits shift and shift + 1 of each byte, as its bits 4 and 5.
inline Bytes two_bits(const Bytes& bytes, int shift) {
  return each_byte(bytes, [=](uint8_t byte) { return (byte >> shift & 3) << 4; });
}
inline Bytes or_bytes(Bytes a, const Bytes& b) {
  for (int i = 0; i < kInts * 4; ++i) a.at[i] |= b.at[i];
  return a;
}
inline Bytes bytes_at(const uint8_t* table, const Bytes& at) {
  return each_byte(at, [=](uint8_t byte) { return table[byte]; });
}
inline Quad quad_of(const Bytes& bytes) { return bytes; }
inline Spread spread(const char* values) {
  Spread four;
  std::memcpy(four.at, values, sizeof(four.at));
  return four;
}
inline Ints dot(const Ints& acc, const Quad& w, const Spread& x) {
  return each<Ints>([&](int i) {
    int32_t sum = acc.at[i];
    for (int j = 0; j < 4; ++j) sum += int32_t{w.at[i * 4 + j]} * x.at[j];
    return sum;
  });
}
inline Ints max_magnitude(const Ints& most, const Floats& x) {
  return each<Ints>([&](int i) {
    const int32_t bits = std::bit_cast<int32_t>(x.at[i]) & INT32_MAX;
    return bits > most.at[i] ? bits : most.at[i];
  });
}
inline int32_t fold_max_ints(const Ints& a) {
  int32_t most = 0;
  for (const int32_t value : a.at) most = value > most ? value : most;
  return most;
}
inline int32_t fold_add_ints(const Ints& a) {
  int32_t sum = 0;
  for (const int32_t value : a.at) sum += value;
  return sum;
}
// To nearest, ties to even, for |x| < 2^22.
inline Ints round_to_ints(const Floats& x) {
  return each<Ints>([&](int i) {
    const float shifted = x.at[i] + 0x1.8p23f;
    return static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - 0x4B400000u);
  });
}
inline void store_values(char* to, const Ints& a) {
  for (int i = 0; i < kInts; ++i) to[i] = static_cast<char>(a.at[i]);
}
inline void prefetch(const char*) {}

#include "runtime/ops/cpu/int8/int8_body.h"

}  // namespace
}  // namespace outrider::ops::cpu::int8_scalar

namespace outrider::ops::cpu {
const QuantKernels kScalarQuantKernels = int8_scalar::kernels_named("scalar");
}  // namespace outrider::ops::cpu
