// How a checkpoint's projections are kept in integers, from the quantization_config of a Hugging
// Face config.json. Read at start on every rank; which projections are quantised at all is seen
// from the tensors (models/weights/quantized_tensors.h), not from here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/ops/quantized.h"

namespace outrider {

// The layouts that are read, by who writes them.
enum class WeightLayout : uint8_t {
  kPlain,          // floats
  kGptq,           // GPTQ (Frantar et al. 2210.17323) as AutoGPTQ and GPTQModel pack it
  kAwq,            // AWQ (Lin et al. 2306.00978) as AutoAWQ's "gemm" version packs it
  kIntQuantized,   // compressed-tensors: signed bytes
  kPackQuantized,  // compressed-tensors: offset integers in 32-bit words
  kMxfp4,          // gpt-oss' experts: floats of 4 bits, a power of two for each 32 of them
  kGguf,           // llama.cpp's blocks (models/weights/gguf_source.cpp)
  kFp8Blocks       // e4m3, a scale for each block of rows and columns (models/weights/fp8_blocks.h)
};

struct QuantizationConfig {
  WeightLayout layout = WeightLayout::kPlain;
  int32_t num_bits = 0;         // 4 or 8
  int32_t group_size = 0;       // inputs that share a scale; 0 = all of an output's
  bool zeros_less_one = false;  // gptq before v2: a stored zero point is one less than it means
  bool symmetric = true;        // compressed-tensors: there are no zero points
  int32_t block_rows = 0;       // kFp8Blocks
  int32_t block_columns = 0;
};

// What the option `quantization` makes of float weights as they are loaded: "none", "int8" (groups
// of 128 inputs). Throws Error for another name.
ops::QuantFormat load_format(const std::string& quantization);

// kPlain when the file has no quantization_config. Throws Error naming the file, the method or key
// and what is known.
QuantizationConfig read_quantization_config(const std::filesystem::path& model);

}  // namespace outrider
