// See gguf_blocks.h.
#include "models/gguf/gguf_blocks.h"

#include <cstring>

#include "runtime/base/numbers/exact_math.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

uint16_t word(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }
float half(const uint8_t* bytes) { return ops::f16_to_float(word(bytes)); }
float value_of(int integer) { return static_cast<float>(integer); }

void f32(const uint8_t* block, float* out) { std::memcpy(out, block, sizeof(float)); }
void f16(const uint8_t* block, float* out) { *out = half(block); }
void bf16(const uint8_t* block, float* out) { *out = ops::bf16_to_float(word(block)); }

// Values i and i + 16 of a block of 32 share byte i.
template <typename Value>
void halves(const uint8_t* packed, float* out, const Value& value) {
  for (int i = 0; i < 16; ++i) {
    out[i] = value(i, packed[i] & 15);
    out[i + 16] = value(i + 16, packed[i] >> 4);
  }
}

void q4_0(const uint8_t* block, float* out) {
  const float d = half(block);
  halves(block + 2, out, [&](int, int q) { return d * value_of(q - 8); });
}

void q4_1(const uint8_t* block, float* out) {
  const float d = half(block);
  const float m = half(block + 2);
  halves(block + 4, out, [&](int, int q) { return d * value_of(q) + m; });
}

// The fifth bits of 32 values.
int fifth_bit(const uint8_t* bits, int i) { return (bits[i / 8] >> i % 8 & 1) << 4; }

void q5_0(const uint8_t* block, float* out) {
  const float d = half(block);
  halves(block + 6, out, [&](int i, int q) {
    return d * value_of((q | fifth_bit(block + 2, i)) - 16);
  });
}

void q5_1(const uint8_t* block, float* out) {
  const float d = half(block);
  const float m = half(block + 2);
  halves(block + 8, out, [&](int i, int q) {
    return d * value_of(q | fifth_bit(block + 4, i)) + m;
  });
}

void q8_0(const uint8_t* block, float* out) {
  const float d = half(block);
  for (int i = 0; i < 32; ++i) out[i] = d * value_of(static_cast<int8_t>(block[2 + i]));
}

// 16 scales of 4 bits with minima of 4 bits, 64 bytes of 2 bits, d, dmin.
void q2_k(const uint8_t* block, float* out) {
  const float d = half(block + 80);
  const float dmin = half(block + 82);
  for (int i = 0; i < 256; ++i) {
    const uint8_t scale = block[i / 16];
    const int q = block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    out[i] = d * value_of(scale & 15) * value_of(q) - dmin * value_of(scale >> 4);
  }
}

// 32 bytes of third bits, 64 bytes of 2 bits, 16 scales of 6 bits in 12 bytes, d.
void q3_k(const uint8_t* block, float* out) {
  const float d = half(block + 108);
  const uint8_t* scales = block + 96;
  for (int i = 0; i < 256; ++i) {
    const int s = i / 16;
    const int low = scales[s % 8] >> (s / 8 * 4) & 15;
    const int high = scales[8 + s % 4] >> (s / 4 * 2) & 3;
    const int q = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    const bool is_upper = (block[i % 32] >> (i / 32) & 1) != 0;
    out[i] = d * value_of((low | high << 4) - 32) * value_of(is_upper ? q : q - 4);
  }
}

// Scale and minimum of stretch s, 6 bits each, of the 12 bytes that q4_k and q5_k share.
struct ScaleAndMin {
  int scale;
  int min;
};
ScaleAndMin scale_and_min(const uint8_t* packed, int s) {
  if (s < 4) return {packed[s] & 63, packed[4 + s] & 63};
  const int high = packed[8 + s - 4];
  return {(high & 15) | (packed[s - 4] >> 6) << 4, high >> 4 | (packed[s] >> 6) << 4};
}

// d, dmin, 8 scales and minima, then (q5_k) 32 bytes of fifth bits, 128 bytes of 4 bits.
void q4_or_5_k(const uint8_t* block, const uint8_t* fifth_bits, const uint8_t* packed, float* out) {
  const float d = half(block);
  const float dmin = half(block + 2);
  for (int i = 0; i < 256; ++i) {
    const auto [scale, min] = scale_and_min(block + 4, i / 32);
    int q = packed[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
    if (fifth_bits != nullptr) q |= (fifth_bits[i % 32] >> (i / 32) & 1) << 4;
    out[i] = d * value_of(scale) * value_of(q) - dmin * value_of(min);
  }
}

void q4_k(const uint8_t* block, float* out) { q4_or_5_k(block, nullptr, block + 16, out); }
void q5_k(const uint8_t* block, float* out) { q4_or_5_k(block, block + 16, block + 48, out); }

// 128 bytes of 4 bits, 64 bytes of 2 bits, 16 signed scales, d.
void q6_k(const uint8_t* block, float* out) {
  const float d = half(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int low = block[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
    const int high = block[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    const auto scale = static_cast<int8_t>(block[192 + i / 16]);
    out[i] = d * value_of(scale) * value_of((low | high << 4) - 32);
  }
}

constexpr int8_t kNonLinear[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void iq4_nl(const uint8_t* block, float* out) {
  const float d = half(block);
  halves(block + 2, out, [&](int, int q) { return d * value_of(kNonLinear[q]); });
}

// d, 8 scales of 6 bits (2 high in a word, 4 low in 4 bytes), 128 bytes of 4 bits.
void iq4_xs(const uint8_t* block, float* out) {
  const float d = half(block);
  for (int s = 0; s < 8; ++s) {
    const int low = block[4 + s / 2] >> (s % 2 * 4) & 15;
    const int high = word(block + 2) >> (2 * s) & 3;
    const float scale = d * value_of((low | high << 4) - 32);
    halves(block + 8 + 16 * s, out + 32 * s, [&](int, int q) {
      return scale * value_of(kNonLinear[q]);
    });
  }
}

// OCP microscaling: an exponent, halved because the values of e2m1 are doubled.
void mxfp4(const uint8_t* block, float* out) {
  constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const uint32_t e = block[0];
  const float d = float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  halves(block + 1, out, [&](int, int q) { return d * value_of(kDoubled[q]); });
}

constexpr GgufType kTypes[] = {
    {kGgufF32, "F32", 1, 4, f32},
    {kGgufF16, "F16", 1, 2, f16},
    {kGgufQ4_0, "Q4_0", 32, 18, q4_0},
    {3, "Q4_1", 32, 20, q4_1},
    {6, "Q5_0", 32, 22, q5_0},
    {7, "Q5_1", 32, 24, q5_1},
    {kGgufQ8_0, "Q8_0", 32, 34, q8_0},
    {10, "Q2_K", 256, 84, q2_k},
    {11, "Q3_K", 256, 110, q3_k},
    {12, "Q4_K", 256, 144, q4_k},
    {13, "Q5_K", 256, 176, q5_k},
    {14, "Q6_K", 256, 210, q6_k},
    {20, "IQ4_NL", 32, 18, iq4_nl},
    {23, "IQ4_XS", 256, 136, iq4_xs},
    {kGgufBF16, "BF16", 1, 2, bf16},
    {39, "MXFP4", 32, 17, mxfp4},
};

}  // namespace

const GgufType* gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes)
    if (type.id == id) return &type;
  return nullptr;
}

}  // namespace outrider
