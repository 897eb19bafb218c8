// The element types of GGUF files: how many values a block of bytes holds, and which. A table;
// pure. All but the plain floats are integers with a scale, and some an offset, for every few
// values. The formulas are those of llama.cpp's reference dequantisation (gguf-py, quants.py), in
// float32 and in its order, so that the values have its bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/ops/quantized.h"

namespace outrider {

inline constexpr int kMostBlockValues = 256;
inline constexpr int kMostBlockGroups = 16;

// value i = scales[i / group] * (values[i] - zero) + offsets[i / group], the type's group and zero;
// of types with codes values[i] is one (ops::code_value).
struct GgufBlock {
  int8_t values[kMostBlockValues];
  float scales[kMostBlockGroups];
  float offsets[kMostBlockGroups];
  // Of types whose format has super-blocks: scales[g] = super_scale * steps[g], offsets likewise.
  float super_scale;
  float super_offset;
  float steps[kMostBlockGroups];
  float offset_steps[kMostBlockGroups];
};

struct GgufType {
  uint32_t id = 0;  // in the file
  const char* name = "";
  int32_t block_values = 1;
  int32_t block_bytes = 4;
  ops::QuantFormat
      format;       // the integers' own: what a matrix that holds them needs; bits 0: floats
  int8_t zero = 0;  // of linear 4-bit formats without offsets
  void (*unpack)(const uint8_t* bytes, GgufBlock* block) = nullptr;  // null: floats

  // Of one of a block's values.
  int integer(int8_t value) const {
    if (format.codes == ops::QuantCodes::kLinear) return value - zero;
    return ops::code_value(format.codes, value);
  }
};

inline constexpr uint32_t kGgufF32 = 0;
inline constexpr uint32_t kGgufF16 = 1;
inline constexpr uint32_t kGgufQ4_0 = 2;
inline constexpr uint32_t kGgufQ8_0 = 8;
inline constexpr uint32_t kGgufBF16 = 30;

// nullptr for a type that is not read.
const GgufType* gguf_type(uint32_t id);

// bytes: one block; out: block_values floats.
void dequantize(const GgufType& type, const uint8_t* bytes, float* out);

}  // namespace outrider
