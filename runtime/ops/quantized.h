// Quantised weights: their format, how they lie in a panel, and the rows a PackedMatrix is filled
// from. A weight is an integer of 8, 6 or 4 bits; each output has one scale (4-bit: also one zero
// point) per group of inputs: value = scale * (integer - zero). Or it has a scale and an offset:
// value = scale * integer + offset. Scales may be kept in fewer bits than a float's, where these
// hold them exactly. Included by tensor.h; used while a model is loaded and by the products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace outrider::ops {

// Inputs of a quantised matrix come in blocks of this many. Slices of a sum and shards of a matrix
// may begin only at multiples of it.
inline constexpr int64_t kQuantBlock = 8;
// Activations are quantised in stretches of at most this many inputs, each with a scale of its own.
inline constexpr int64_t kQuantStretch = 128;

enum class QuantScales {
  kFloat32,
  kFloat16,  // offsets too; 4 bits without offsets: every zero point is 8
  // As llama.cpp's K-quants: a group's scale is a signed byte times the float16 of its super-block
  // of 256 inputs, its offset likewise; zero points as with kFloat16.
  kSuperBlocks,
  kPowers,  // of two, each kept as the exponent of its float; without offsets
};
// What 4 bits stand for: themselves, or one of 16 integers.
enum class QuantCodes {
  kLinear,
  kE2m1,       // MXFP4's floats, times 2
  kNonLinear,  // llama.cpp's IQ4_NL and IQ4_XS
};
inline constexpr int64_t kQuantSuperBlock = 256;

// bits 8: signed integers -128 .. 127, zero point 0. bits 6: the same, -32 .. 31. bits 4: 0 .. 15
// with a zero point 0 .. 255 per group, as GPTQ (arXiv:2210.17323) and AWQ (arXiv:2306.00978) files
// have them. With offsets there are no zero points: llama.cpp's Q4_K and its like.
struct QuantFormat {
  int bits = 0;            // 0: not quantised
  int64_t group_size = 0;  // inputs that share a scale: 16, 32, 64, 128 n; 0: all of them
  bool has_offsets = false;
  QuantScales scales = QuantScales::kFloat32;
  QuantCodes codes = QuantCodes::kLinear;  // others: of 4 bits, without offsets or zero points

  bool has_zero_points() const {
    return bits == 4 && !has_offsets && scales == QuantScales::kFloat32 &&
           codes == QuantCodes::kLinear;
  }
  friend bool operator==(const QuantFormat&, const QuantFormat&) = default;
};

// The integer that a code 0 .. 15 stands for.
int code_value(QuantCodes codes, int code);

// Throws Error when the format is none of those above.
void check_quant_format(const QuantFormat& format);

// Throws Error, naming `what`, unless a quantised matrix can begin at input in_begin of the whole
// one and its sums be cut at slice_ends (relative to in_begin; the last is the matrix' end and may
// be any number).
void check_quant_cuts(const char* what, int64_t in_begin, std::span<const int64_t> slice_ends);

// Groups are those of the whole matrix: a shard that holds inputs [in_begin, in_begin + n_in) may
// begin and end within one.
struct QuantGroups {
  int64_t n_in = 0;
  int64_t size = 0;   // of a whole group; n_in's own end may cut the last
  int64_t first = 0;  // inputs of the first group that lie in this shard

  QuantGroups() = default;
  QuantGroups(const QuantFormat& format, int64_t num_inputs, int64_t in_begin);

  int64_t count() const { return n_in == 0 ? 0 : 1 + (n_in - first + size - 1) / size; }
  int64_t begin(int64_t group) const { return group == 0 ? 0 : first + (group - 1) * size; }
  int64_t end(int64_t group) const {
    const int64_t to = first + group * size;
    return to < n_in ? to : n_in;
  }
  int64_t of(int64_t input) const { return input < first ? 0 : 1 + (input - first) / size; }
};

// How a panel of 64 outputs lies in memory: for each super-block, if there are such, 64 float16 and
// with offsets 64 more. Then group after group, each its 64 scales (floats, float16 or bytes), its
// 64 offsets (as the scales) or zero points (bytes), then its weights, the inputs padded to whole
// blocks. 8-bit: dword (i / 4) * 64 + o holds inputs i .. i + 3 of output o, each as integer + 128.
// 4-bit: dword (i / 8) * 64 + o holds inputs i .. i + 3 in the low halves of its bytes and i + 4 ..
// i + 7 in the high ones. 6-bit: of every 8 inputs 64 such dwords with the low 4 bits (of integer +
// 32), then 32 with the high 2: dword o / 32 * 16 + o % 16 holds those of inputs i .. i + 3 in the
// lowest two bits of its bytes, those of i + 4 .. i + 7 in the next; outputs o % 32 of 16 to 31 the
// upper four.
struct QuantLayout {
  QuantFormat format;
  QuantGroups groups;
  int64_t into_super = 0;  // inputs of the first super-block that lie before this shard

  size_t scale_bytes() const {
    if (format.scales == QuantScales::kFloat32) return 4;
    return format.scales == QuantScales::kFloat16 ? 2 : 1;
  }
  size_t header_bytes() const {
    return 64 * (scale_bytes() * (format.has_offsets ? 2 : 1) + (format.has_zero_points() ? 1 : 0));
  }
  int64_t num_supers() const {
    if (format.scales != QuantScales::kSuperBlocks || groups.n_in == 0) return 0;
    return super_of(groups.n_in - 1) + 1;
  }
  int64_t super_of(int64_t input) const { return (into_super + input) / kQuantSuperBlock; }
  size_t super_offset(int64_t super) const {
    return static_cast<size_t>(super) * 64 * 2 * (format.has_offsets ? 2 : 1);
  }
  size_t weight_bytes(int64_t num_inputs) const {  // num_inputs: whole blocks
    return static_cast<size_t>(num_inputs) * 64 * static_cast<size_t>(format.bits) / 8;
  }
  size_t group_bytes(int64_t num_inputs) const {
    return header_bytes() +
           weight_bytes((num_inputs + kQuantBlock - 1) / kQuantBlock * kQuantBlock);
  }
  size_t group_offset(int64_t group) const {
    const size_t supers = super_offset(num_supers());
    if (group == 0) return supers;
    return supers + group_bytes(groups.first) +
           static_cast<size_t>(group - 1) * group_bytes(groups.size);
  }
  size_t panel_bytes() const;
};

// Rows of integers, one per byte: signed ones of 8 and 6 bits, 0 .. 15 of 4. Strides in elements;
// the groups are those of the matrix that is filled (PackedMatrix::quant_groups). Scales and
// offsets must be what the format can hold: floats, float16 or, with super-blocks, integers -128 ..
// 127.
struct SuperScales {
  const float* scales = nullptr;  // [num_rows, super-blocks], each a float16
  const float* offsets = nullptr;
  int64_t stride = 0;
};
struct IntegerRows {
  const int8_t* values = nullptr;  // [num_rows, n_in]
  int64_t values_stride = 0;
  const float* scales = nullptr;  // [num_rows, groups]
  int64_t scales_stride = 0;
  const uint8_t* zeros = nullptr;  // of 4 bits, strides as the scales; null: 8 everywhere
  const float* offsets = nullptr;  // where the format has them, strides as the scales
  SuperScales supers{};
};

// One row's group of numbers to integers (8-bit: integer + 128). 8-bit: scale = largest |x| / 127,
// symmetric, rounded to nearest even. 4-bit: scale = (max - min) / 15 with 0 within the range,
// round to nearest even. NaN or inf among the numbers make the scale NaN, so that a product with
// them is NaN and never a plausible number.
struct QuantizedGroup {
  float scale = 0.0f;
  uint8_t zero = 0;
  float offset = 0.0f;
};
QuantizedGroup quantize_group(int bits, const float* x, int64_t count, uint8_t* integers);

// 4 bits with zero point 8 and a float16 scale, perhaps negative, chosen from many so that the
// squared error is small. Slower, and better than largest / 7. The scale is not finite when a
// number is not, or when float16 cannot hold it.
QuantizedGroup fit_group_4(const float* x, int64_t count, uint8_t* integers);

}  // namespace outrider::ops
