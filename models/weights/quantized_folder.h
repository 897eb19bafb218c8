// Writes a model folder whose projections are 8-bit or 4-bit integers, in the layout of
// compressed-tensors, which Hugging Face transformers and vLLM load too, but for experts in one
// tensor and gpt2's transposed matrices: these have no form there, and become plain matrices of
// outputs and inputs. Used by `quantize`; a few rows of a tensor are in memory at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "models/checkpoint/safetensors_writer.h"

namespace outrider {

struct QuantizeOptions {
  int32_t bits = 8;          // or 4: only packed
  int32_t group_size = 128;  // inputs that share a scale; 0 = all of an output's
  bool packed = false;       // pack-quantized (offset integers in words) instead of int-quantized
  bool keep_head = false;    // the head stays as it is (vLLM reads no other)
  uint64_t max_file_bytes = CheckpointWriter::kMaxFileBytes;
};

// 8 bits: the integers and scales are those that the option `quantization int8` makes at load, when
// the group size is 128 and the head is not kept. 4 bits: ops::fit_group_4. A tied head is written beside the embedding, which
// stays as it is. Other files of the folder (tokenizer, templates, generation_config.json) are
// copied. progress: bytes written, bytes in all. Throws Error when output is there and not empty,
// when the model is quantised already, or when a weight is NaN or infinite.
void quantize_folder(const std::filesystem::path& model_dir,
                     const std::filesystem::path& output,
                     const QuantizeOptions& options,
                     const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace outrider
