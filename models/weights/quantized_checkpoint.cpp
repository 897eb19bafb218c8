// Between the files' integers and the matrices of the products; see quantized_checkpoint.h.
#include "models/weights/quantized_checkpoint.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {
namespace {

// Rows that are unpacked and packed at once: their words share cache lines.
constexpr int64_t kBlockRows = 64;

}  // namespace

std::optional<std::string> QuantizedCheckpoint::projection_of(
    const std::string& tensor_name) const {
  constexpr std::string_view kSuffix = ".weight";
  if (!tensor_name.ends_with(kSuffix)) return std::nullopt;
  std::string projection = tensor_name.substr(0, tensor_name.size() - kSuffix.size());
  if (!tensors_.has(projection)) return std::nullopt;
  return projection;
}

std::optional<ops::QuantFormat> QuantizedCheckpoint::runnable_format(
    const Projection& projection) const {
  if (!tensors_.has(projection.name)) return std::nullopt;
  const QuantizedTensors::Form form = tensors_.expect(projection);
  const bool one_group = form.group_size >= projection.n_in;
  const bool known_size = one_group || form.group_size == 32 || form.group_size == 64 ||
                          form.group_size % ops::kQuantStretch == 0;
  if (!form.in_order || !known_size || (num_bits_ == 8 && !form.symmetric)) return std::nullopt;
  const bool as_halves = form.symmetric && form.scale_dtype == ops::DType::kF16;
  return ops::QuantFormat{.bits = num_bits_,
                          .group_size = one_group ? 0 : form.group_size,
                          .scales = form.powers ? ops::QuantScales::kPowers
                                    : as_halves ? ops::QuantScales::kFloat16
                                                : ops::QuantScales::kFloat32,
                          .codes = form.powers ? ops::QuantCodes::kE2m1 : ops::QuantCodes::kLinear};
}

void QuantizedCheckpoint::fill(const std::string& projection,
                               const TensorPart& part,
                               int64_t first_row,
                               ops::PackedMatrix& to) const {
  const QuantizedPart read = tensors_.read(
      {projection, tensors_.n_out(projection), part.n_columns}, part.rows, part.columns);
  const int64_t groups = read.n_groups();
  OUTRIDER_CHECK(to.n_in() == read.n_columns() && to.quant_groups().count() == groups);
  std::vector<int8_t> values(static_cast<size_t>(kBlockRows * read.n_columns()));
  for (int64_t row = 0; row < read.n_rows(); row += kBlockRows) {
    const Range rows = {row, std::min(read.n_rows(), row + kBlockRows)};
    if (num_bits_ == 8) {
      read.signed_values(rows, values.data());
    } else {
      read.integers(rows, reinterpret_cast<uint8_t*>(values.data()));
    }
    to.fill_integers(first_row + row,
                     rows.size(),
                     {.values = values.data(),
                      .values_stride = read.n_columns(),
                      .scales = read.scales().data() + row * groups,
                      .scales_stride = groups,
                      .zeros = read.zeros().data() + row * groups});
  }
}

ops::DType QuantizedCheckpoint::float_type(const Projection& projection) const {
  return tensors_.expect(projection).scale_dtype;
}

void QuantizedCheckpoint::read_floats(const std::string& projection,
                                      const TensorPart& part,
                                      std::byte* out) const {
  const Projection whole = {projection, tensors_.n_out(projection), part.n_columns};
  const ops::DType dtype = float_type(whole);
  const QuantizedPart read = tensors_.read(whole, part.rows, part.columns);
  std::vector<float> values;
  for (int64_t row = 0; row < read.n_rows(); row += kBlockRows) {
    const Range rows = {row, std::min(read.n_rows(), row + kBlockRows)};
    values.resize(static_cast<size_t>(rows.size() * read.n_columns()));
    read.dequantize(rows, values.data());
    out = narrow(values, dtype, out);
  }
}

}  // namespace outrider
