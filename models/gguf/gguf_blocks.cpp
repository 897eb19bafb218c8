// See gguf_blocks.h.
#include "models/gguf/gguf_blocks.h"

#include <cstring>

#include "runtime/base/numbers/exact_math.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

uint16_t word(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }
float half(const uint8_t* bytes) { return ops::f16_to_float(word(bytes)); }
float scaled(float scale, int integer) { return scale * static_cast<float>(integer); }

void set_scale(GgufBlock* block, int group, int step) {
  block->steps[group] = static_cast<float>(step);
  block->scales[group] = scaled(block->super_scale, step);
}
void set_offset(GgufBlock* block, int group, int step) {
  block->offset_steps[group] = static_cast<float>(step);
  block->offsets[group] = scaled(block->super_offset, step);
}

// Values i and i + 16 of a block of 32 share byte i.
template <typename Value>
void halves(const uint8_t* packed, int8_t* values, const Value& value) {
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<int8_t>(value(i, packed[i] & 15));
    values[i + 16] = static_cast<int8_t>(value(i + 16, packed[i] >> 4));
  }
}
int as_it_is(int, int q) { return q; }

void q4_0(const uint8_t* bytes, GgufBlock* block) {
  block->scales[0] = half(bytes);
  halves(bytes + 2, block->values, as_it_is);
}

void q4_1(const uint8_t* bytes, GgufBlock* block) {
  block->scales[0] = half(bytes);
  block->offsets[0] = half(bytes + 2);
  halves(bytes + 4, block->values, as_it_is);
}

// The fifth bits of 32 values.
int fifth_bit(const uint8_t* bits, int i) { return (bits[i / 8] >> i % 8 & 1) << 4; }

void q5_0(const uint8_t* bytes, GgufBlock* block) {
  block->scales[0] = half(bytes);
  halves(
      bytes + 6, block->values, [&](int i, int q) { return (q | fifth_bit(bytes + 2, i)) - 16; });
}

void q5_1(const uint8_t* bytes, GgufBlock* block) {
  block->scales[0] = half(bytes);
  block->offsets[0] = half(bytes + 2);
  halves(bytes + 8, block->values, [&](int i, int q) { return q | fifth_bit(bytes + 4, i); });
}

void q8_0(const uint8_t* bytes, GgufBlock* block) {
  block->scales[0] = half(bytes);
  std::memcpy(block->values, bytes + 2, 32);
}

// Two bits of value i of 256: 64 bytes, 128 values to each half.
int two_bits(const uint8_t* packed, int i) {
  return packed[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

// 16 scales of 4 bits with minima of 4 bits, 64 bytes of 2 bits, d, dmin.
void q2_k(const uint8_t* bytes, GgufBlock* block) {
  block->super_scale = half(bytes + 80);
  block->super_offset = -half(bytes + 82);
  for (int s = 0; s < 16; ++s) {
    set_scale(block, s, bytes[s] & 15);
    set_offset(block, s, bytes[s] >> 4);
  }
  for (int i = 0; i < 256; ++i) block->values[i] = static_cast<int8_t>(two_bits(bytes + 16, i));
}

// 32 bytes of third bits, 64 bytes of 2 bits, 16 scales of 6 bits in 12 bytes, d.
void q3_k(const uint8_t* bytes, GgufBlock* block) {
  const uint8_t* scales = bytes + 96;
  block->super_scale = half(bytes + 108);
  for (int s = 0; s < 16; ++s) {
    const int low = scales[s % 8] >> (s / 8 * 4) & 15;
    const int high = scales[8 + s % 4] >> (s / 4 * 2) & 3;
    set_scale(block, s, (low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int third = (bytes[i % 32] >> (i / 32) & 1) << 2;
    block->values[i] = static_cast<int8_t>((two_bits(bytes + 32, i) | third) + 4);
  }
}

// Scales and minima of 6 bits in the 12 bytes that q4_k and q5_k share, after d and dmin.
void unpack_scales(const uint8_t* bytes, GgufBlock* block) {
  const uint8_t* packed = bytes + 4;
  block->super_scale = half(bytes);
  block->super_offset = -half(bytes + 2);
  for (int s = 0; s < 8; ++s) {
    int scale = packed[s] & 63;
    int min = packed[4 + s] & 63;
    if (s >= 4) {
      scale = (packed[4 + s] & 15) | (packed[s - 4] >> 6) << 4;
      min = packed[4 + s] >> 4 | (packed[s] >> 6) << 4;
    }
    set_scale(block, s, scale);
    set_offset(block, s, min);
  }
}

// Four bits of value i of 256: 128 bytes, 64 values to each quarter.
int four_bits(const uint8_t* packed, int i) {
  return packed[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

void q4_k(const uint8_t* bytes, GgufBlock* block) {
  unpack_scales(bytes, block);
  for (int i = 0; i < 256; ++i) block->values[i] = static_cast<int8_t>(four_bits(bytes + 16, i));
}

// 32 bytes of fifth bits before the others.
void q5_k(const uint8_t* bytes, GgufBlock* block) {
  unpack_scales(bytes, block);
  for (int i = 0; i < 256; ++i) {
    const int fifth = (bytes[16 + i % 32] >> (i / 32) & 1) << 4;
    block->values[i] = static_cast<int8_t>(four_bits(bytes + 48, i) | fifth);
  }
}

// 128 bytes of 4 bits, 64 bytes of 2 bits, 16 signed scales, d.
void q6_k(const uint8_t* bytes, GgufBlock* block) {
  block->super_scale = half(bytes + 208);
  for (int s = 0; s < 16; ++s) set_scale(block, s, static_cast<int8_t>(bytes[192 + s]));
  for (int i = 0; i < 256; ++i) {
    const int low = bytes[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
    block->values[i] = static_cast<int8_t>((low | two_bits(bytes + 128, i) << 4) - 32);
  }
}

// d, 8 scales of 6 bits (2 high in a word, 4 low in 4 bytes), 128 bytes of 4 bits.
void iq4_xs(const uint8_t* bytes, GgufBlock* block) {
  block->super_scale = half(bytes);
  for (int s = 0; s < 8; ++s) {
    const int low = bytes[4 + s / 2] >> (s % 2 * 4) & 15;
    const int high = word(bytes + 2) >> (2 * s) & 3;
    set_scale(block, s, (low | high << 4) - 32);
    halves(bytes + 8 + 16 * s, block->values + 32 * s, as_it_is);
  }
}

// OCP microscaling: an exponent, halved because the values of e2m1 are doubled.
void mxfp4(const uint8_t* bytes, GgufBlock* block) {
  const uint32_t e = bytes[0];
  block->scales[0] = float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  halves(bytes + 1, block->values, as_it_is);
}

constexpr auto kHalves = ops::QuantScales::kFloat16;
constexpr auto kSupers = ops::QuantScales::kSuperBlocks;
constexpr auto kPowers = ops::QuantScales::kPowers;
constexpr auto kNonLinear = ops::QuantCodes::kNonLinear;
constexpr auto kE2m1 = ops::QuantCodes::kE2m1;

constexpr GgufType kTypes[] = {
    {kGgufF32, "F32", 1, 4, {}, 0, nullptr},
    {kGgufF16, "F16", 1, 2, {}, 0, nullptr},
    {kGgufBF16, "BF16", 1, 2, {}, 0, nullptr},
    {kGgufQ4_0, "Q4_0", 32, 18, {4, 32, false, kHalves}, 8, q4_0},
    {3, "Q4_1", 32, 20, {4, 32, true, kHalves}, 0, q4_1},
    {6, "Q5_0", 32, 22, {6, 32, false, kHalves}, 0, q5_0},
    {7, "Q5_1", 32, 24, {6, 32, true, kHalves}, 0, q5_1},
    {kGgufQ8_0, "Q8_0", 32, 34, {8, 32, false, kHalves}, 0, q8_0},
    {10, "Q2_K", 256, 84, {4, 16, true, kSupers}, 0, q2_k},
    {11, "Q3_K", 256, 110, {4, 16, false, kSupers}, 8, q3_k},
    {12, "Q4_K", 256, 144, {4, 32, true, kSupers}, 0, q4_k},
    {13, "Q5_K", 256, 176, {6, 32, true, kSupers}, 0, q5_k},
    {14, "Q6_K", 256, 210, {6, 16, false, kSupers}, 0, q6_k},
    {20, "IQ4_NL", 32, 18, {4, 32, false, kHalves, kNonLinear}, 0, q4_0},
    {23, "IQ4_XS", 256, 136, {4, 32, false, kSupers, kNonLinear}, 0, iq4_xs},
    {39, "MXFP4", 32, 17, {4, 32, false, kPowers, kE2m1}, 0, mxfp4},
};

}  // namespace

const GgufType* gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes)
    if (type.id == id) return &type;
  return nullptr;
}

void dequantize(const GgufType& type, const uint8_t* bytes, float* out) {
  if (type.id == kGgufF32) {
    std::memcpy(out, bytes, sizeof(float));
  } else if (type.id == kGgufF16) {
    *out = half(bytes);
  } else if (type.id == kGgufBF16) {
    *out = ops::bf16_to_float(word(bytes));
  } else {
    GgufBlock block;
    type.unpack(bytes, &block);
    for (int i = 0; i < type.block_values; ++i) {
      const auto group = static_cast<size_t>(i / type.format.group_size);
      const float product = scaled(block.scales[group], type.integer(block.values[i]));
      out[i] = type.format.has_offsets ? product + block.offsets[group] : product;
    }
  }
}

}  // namespace outrider
