// See fp8_blocks.h.
#include "models/weights/fp8_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "models/weights/quantized_tensors.h"
#include "runtime/base/error.h"
#include "runtime/ops/gpu/float8.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

std::string scale_name(const std::string& weight) { return weight + "_scale_inv"; }

int64_t blocks_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

void check_shape(const std::string& name,
                 const Checkpoint::Entry& found,
                 const std::vector<int64_t>& shape) {
  if (found.info->shape == shape) return;
  throw Error(fmt::format("{}: tensor \"{}\" has shape {} but config.json asks for {}",
                          found.file->name(),
                          name,
                          shape_text(found.info->shape),
                          shape_text(shape)));
}

}  // namespace

Fp8Blocks::Fp8Blocks(const Checkpoint& checkpoint, const QuantizationConfig& config)
    : checkpoint_(checkpoint),
      block_rows_(config.block_rows),
      block_columns_(config.block_columns) {
  for (size_t bits = 0; bits < values_.size(); ++bits) {
    values_[bits] = gpu::e4m3_to_float(static_cast<uint8_t>(bits));
  }
}

bool Fp8Blocks::has(const std::string& name) const {
  if (block_rows_ == 0 || !name.ends_with(".weight")) return false;
  const auto info = checkpoint_.find(name).info;
  return info != nullptr && info->type_name == "F8_E4M3";
}

ops::DType Fp8Blocks::expect(const std::string& name, const std::vector<int64_t>& shape) const {
  const Checkpoint::Entry weights = checkpoint_.find(name);
  check_shape(name, weights, shape);
  const Checkpoint::Entry scales = checkpoint_.find(scale_name(name));
  if (shape.size() != 2 || scales.info == nullptr || !scales.info->dtype) {
    throw Error(fmt::format("{}: tensor \"{}\" is F8_E4M3, but there is no \"{}\" in floats",
                            weights.file->name(),
                            name,
                            scale_name(name)));
  }
  check_shape(scale_name(name),
              scales,
              {blocks_of(shape[0], block_rows_), blocks_of(shape[1], block_columns_)});
  return ops::DType::kBF16;
}

// Of the blocks that hold the part's rows, [row blocks, all column blocks].
std::vector<float> Fp8Blocks::scales_of(const TensorPart& part) const {
  const Checkpoint::Entry at = checkpoint_.find(scale_name(part.name));
  const Range rows = {part.rows.begin / block_rows_, blocks_of(part.rows.end, block_rows_)};
  const int64_t width = at.info->shape[1];
  const auto element = static_cast<int64_t>(ops::dtype_bytes(*at.info->dtype));
  return widen(read_rectangle(at, width, rows, {0, width}, element), *at.info->dtype);
}

void Fp8Blocks::read(const TensorPart& part, std::byte* out) const {
  const std::vector<float> scales = scales_of(part);
  const std::vector<std::byte> bytes =
      read_rectangle(checkpoint_.find(part.name), part.n_columns, part.rows, part.columns, 1);
  const int64_t width = blocks_of(part.n_columns, block_columns_);
  const std::byte* from = bytes.data();
  for (int64_t r = part.rows.begin; r < part.rows.end; ++r) {
    const float* own = scales.data() + (r / block_rows_ - part.rows.begin / block_rows_) * width;
    for (int64_t column = part.columns.begin; column < part.columns.end;) {
      const int64_t block = column / block_columns_;
      const int64_t end = std::min(part.columns.end, (block + 1) * block_columns_);
      for (; column < end; ++column, out += sizeof(uint16_t)) {
        const float value = values_[std::to_integer<size_t>(*from++)];
        const uint16_t bits = ops::float_to_bf16(value * own[block]);
        std::memcpy(out, &bits, sizeof(bits));
      }
    }
  }
}

}  // namespace outrider
