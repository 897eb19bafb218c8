// The element types of GGUF files: how many values a block of bytes holds, and which. A table; pure.
// The formulas are those of llama.cpp's reference dequantisation (gguf-py, quants.py), in float32
// and in its order, so that the values have its bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

struct GgufType {
  uint32_t id = 0;  // in the file
  const char* name = "";
  int32_t block_values = 1;
  int32_t block_bytes = 4;
  // block: block_bytes bytes; out: block_values floats.
  void (*dequantize)(const uint8_t* block, float* out) = nullptr;
};

inline constexpr uint32_t kGgufF32 = 0;
inline constexpr uint32_t kGgufF16 = 1;
inline constexpr uint32_t kGgufQ4_0 = 2;
inline constexpr uint32_t kGgufQ8_0 = 8;
inline constexpr uint32_t kGgufBF16 = 30;

// nullptr for a type that is not read.
const GgufType* gguf_type(uint32_t id);

}  // namespace outrider
