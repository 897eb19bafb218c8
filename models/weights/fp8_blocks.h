// Projections that a checkpoint keeps in e4m3 with a scale for each block of rows and columns:
// NAME.weight and NAME.weight_scale_inv, as DeepSeek-V3's files have them. Read as bf16, to which
// DeepSeek's own conversion rounds them. Nothing in the files is trusted. Used while weights load;
// may be called from several threads.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "models/checkpoint/quantization_config.h"
#include "models/checkpoint/safetensors.h"
#include "models/weights/weight_reader.h"
#include "runtime/ops/tensor.h"

namespace outrider {

class Fp8Blocks {
 public:
  // checkpoint must outlive this.
  Fp8Blocks(const Checkpoint& checkpoint, const QuantizationConfig& config);

  // Whether the tensor of this whole name ("....weight") is one of them.
  bool has(const std::string& name) const;
  // What read() gives. Throws Error naming file and tensor unless weights and scales have this
  // shape.
  ops::DType expect(const std::string& name, const std::vector<int64_t>& shape) const;
  void read(const TensorPart& part, std::byte* out) const;

 private:
  std::vector<float> scales_of(const TensorPart& part) const;

  const Checkpoint& checkpoint_;
  int64_t block_rows_;  // 0: the checkpoint has none
  int64_t block_columns_;
  std::array<float, 256> values_;
};

}  // namespace outrider
