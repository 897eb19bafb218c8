// The layouts of GPTQ, AWQ, compressed-tensors and MXFP4; see quantized_tensors.h. What each tensor
// holds (in: inputs, out: outputs, per: integers in a 32-bit word, lowest bits first):
//
//   gptq             NAME.qweight I32 [in / per, out], a word holding consecutive inputs;
//                    NAME.qzeros I32 [groups, out / per], consecutive outputs; NAME.scales
//                    [groups, out]; NAME.g_idx I32 [in], the group of each input, may be missing.
//                    Before v2, qzeros is the zero points less one, word by word.
//   awq              NAME.qweight I32 [in, out / 8], a word holding eight outputs in the order 0,
//   2,
//                    4, 6, 1, 3, 5, 7; NAME.qzeros I32 [groups, out / 8] likewise; NAME.scales
//                    [groups, out].
//   int-quantized    NAME.weight I8 [out, in]; NAME.weight_scale [out, groups] ([out] or one number
//                    when there is one group); NAME.weight_zero_point I8 likewise, if asymmetric.
//   pack-quantized   NAME.weight_packed I32 [out, ceil(in / per)], integers offset by half their
//                    range; NAME.weight_scale as above; NAME.weight_zero_point I32 [ceil(out /
//                    per), groups], consecutive outputs, offset too; NAME.weight_g_idx I32 [in],
//                    may be missing; NAME.weight_shape I64 [2].
//   mxfp4            NAME_blocks U8 [experts, out, in / 32, 16], a byte holding two inputs, lowest
//                    bits first, each a float of 4 bits; NAME_scales U8 [experts, out, in / 32],
//                    the power of two plus 127. Twice the floats are integers: so scales are half
//                    of the powers.
#include "models/weights/quantized_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "runtime/base/error.h"

namespace outrider {
namespace {

// Of output o % 8 in its word: place p holds output 0, 2, 4, 6, 1, 3, 5, 7.
constexpr int kAwqShift[8] = {0, 16, 4, 20, 8, 24, 12, 28};

// Rows that are unpacked and packed at once: their words share cache lines.
constexpr int64_t kBlockRows = 64;

constexpr int kFp4NaN = 255;  // of MXFP4's scales

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

struct Tensor : Checkpoint::Entry {
  std::string name;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: tensor \"{}\": {}", file->name(), name, what));
  }
};

// How a layout's integers lie in the file: as a matrix [outputs, inputs] or [inputs, outputs], each
// row or column of which holds so many of them.
struct Packing {
  const char* suffix = nullptr;  // of the tensor's name; null: the layout has no such tensor
  bool inputs_first = false;
  int64_t per_row = 1;
  int64_t per_column = 1;
};
Packing packing_of(const QuantizationConfig& config) {
  const int64_t per_word = config.num_bits > 0 ? 32 / config.num_bits : 0;
  switch (config.layout) {
    case WeightLayout::kGptq:
      return {".qweight", true, per_word, 1};
    case WeightLayout::kAwq:
      return {".qweight", true, 1, per_word};
    case WeightLayout::kIntQuantized:
      return {".weight"};
    case WeightLayout::kPackQuantized:
      return {".weight_packed", false, 1, per_word};
    case WeightLayout::kMxfp4:
      return {"_blocks", false, 1, 2};
    default:
      return {};
  }
}

// A tensor of a projection, checked to be there in this type and one of these shapes.
struct Wanted {
  std::string name;
  std::string type_name;  // empty: F32, BF16 or F16
  std::vector<std::vector<int64_t>> shapes;
};

Tensor find_tensor(const Checkpoint& checkpoint, const Wanted& wanted) {
  const Tensor tensor = {checkpoint.find(wanted.name), wanted.name};
  if (tensor.info == nullptr) {
    throw Error(fmt::format("{}: tensor \"{}\" is missing; expected in shape {}",
                            checkpoint.origin(),
                            wanted.name,
                            shape_text(wanted.shapes[0])));
  }
  const auto& shapes = wanted.shapes;
  if (std::find(shapes.begin(), shapes.end(), tensor.info->shape) == shapes.end()) {
    tensor.fail(fmt::format("has shape {} but config.json asks for {}",
                            shape_text(tensor.info->shape),
                            shape_text(shapes[0])));
  }
  const bool type_fits = wanted.type_name.empty() ? tensor.info->dtype.has_value()
                                                  : tensor.info->type_name == wanted.type_name;
  if (!type_fits) {
    tensor.fail(fmt::format("is of type {}, not {}",
                            tensor.info->type_name,
                            wanted.type_name.empty() ? "F32, BF16 or F16" : wanted.type_name));
  }
  return tensor;
}

uint32_t word_at(const std::vector<std::byte>& bytes, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + 4 * index, sizeof(word));
  return word;
}

}  // namespace

std::vector<std::byte> read_rectangle(
    const Checkpoint::Entry& entry, int64_t n_columns, Range rows, Range columns, int64_t element) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows.size() * columns.size() * element));
  const bool whole_rows = columns.size() == n_columns;
  const int64_t num_reads = whole_rows ? 1 : rows.size();
  const size_t read_bytes = bytes.size() / static_cast<size_t>(std::max<int64_t>(1, num_reads));
  for (int64_t i = 0; i < num_reads; ++i) {
    const int64_t offset = ((rows.begin + i) * n_columns + columns.begin) * element;
    entry.file->read(*entry.info,
                     static_cast<uint64_t>(offset),
                     bytes.data() + static_cast<size_t>(i) * read_bytes,
                     read_bytes);
  }
  return bytes;
}

void QuantizedPart::unpack_input_words(Range rows, uint8_t* out) const {
  const int64_t per = 32 / num_bits_;
  const uint32_t mask = (1u << num_bits_) - 1;
  const int64_t width = file_columns_.size();
  for (int64_t w = 0; w < file_rows_.size(); ++w) {
    const int64_t input = (file_rows_.begin + w) * per;  // of the projection
    const int64_t begin = std::max(input, columns_.begin);
    const int64_t end = std::min(input + per, columns_.end);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const uint32_t word = word_at(packed_, w * width + row);
      uint8_t* to = out + (row - rows.begin) * n_columns() - columns_.begin;
      for (int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<uint8_t>(word >> (num_bits_ * (i - input)) & mask);
      }
    }
  }
}

// Inputs outermost: the words of a few outputs share cache lines.
void QuantizedPart::unpack_output_words(Range rows, uint8_t* out) const {
  const int64_t width = file_columns_.size();
  for (int64_t i = 0; i < n_columns(); ++i) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t output = rows_.begin + row;
      const uint32_t word = word_at(packed_, i * width + output / 8 - file_columns_.begin);
      out[(row - rows.begin) * n_columns() + i] =
          static_cast<uint8_t>(word >> kAwqShift[output % 8] & 15u);
    }
  }
}

void QuantizedPart::unpack_row_words(Range rows, uint8_t* out) const {
  const int64_t per = 32 / num_bits_;
  const uint32_t mask = (1u << num_bits_) - 1;
  const int64_t width = file_columns_.size();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    uint8_t* to = out + (row - rows.begin) * n_columns();
    for (int64_t i = 0; i < n_columns(); ++i) {
      const int64_t input = columns_.begin + i;
      const uint32_t word = word_at(packed_, row * width + input / per - file_columns_.begin);
      to[i] = static_cast<uint8_t>(word >> (num_bits_ * (input % per)) & mask);
    }
  }
}

void QuantizedPart::unpack_fp4(Range rows, uint8_t* out) const {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t first = row * file_columns_.size() - file_columns_.begin;
    for (int64_t i = columns_.begin; i < columns_.end; ++i) {
      const int byte = std::to_integer<int>(packed_[static_cast<size_t>(first + i / 2)]);
      *out++ = static_cast<uint8_t>(byte >> i % 2 * 4 & 15);
    }
  }
}

void QuantizedPart::integers(Range rows, uint8_t* out) const {
  OUTRIDER_CHECK(rows.begin >= 0 && rows.begin <= rows.end && rows.end <= n_rows());
  switch (layout_) {
    case WeightLayout::kGptq:
      return unpack_input_words(rows, out);
    case WeightLayout::kAwq:
      return unpack_output_words(rows, out);
    case WeightLayout::kPackQuantized:
      return unpack_row_words(rows, out);
    case WeightLayout::kMxfp4:
      return unpack_fp4(rows, out);
    case WeightLayout::kIntQuantized:
      for (int64_t i = 0; i < rows.size() * n_columns(); ++i) {
        const auto byte = static_cast<size_t>(rows.begin * n_columns() + i);
        out[i] = std::to_integer<uint8_t>(packed_[byte]) ^ 0x80u;
      }
      return;
    case WeightLayout::kPlain:
    case WeightLayout::kGguf:
    case WeightLayout::kFp8Blocks:
      break;
  }
  OUTRIDER_CHECK(false);
}

void QuantizedPart::signed_values(Range rows, int8_t* out) const {
  std::vector<uint8_t> raw(static_cast<size_t>(rows.size() * n_columns()));
  integers(rows, raw.data());
  for (int64_t row = 0; row < rows.size(); ++row) {
    const uint8_t* zeros = zeros_.data() + (rows.begin + row) * n_groups_;
    for (int64_t i = 0; i < n_columns(); ++i) {
      const int value = raw[static_cast<size_t>(row * n_columns() + i)] -
                        zeros[group_of_column_[static_cast<size_t>(i)]];
      if (value < INT8_MIN || value > INT8_MAX) {
        throw Error(fmt::format(
            "projection \"{}\": its zero points take weights out of the range of a signed byte",
            name_));
      }
      out[row * n_columns() + i] = static_cast<int8_t>(value);
    }
  }
}

void QuantizedPart::dequantize(Range rows, float* out) const {
  std::vector<uint8_t> raw(static_cast<size_t>(rows.size() * n_columns()));
  integers(rows, raw.data());
  for (int64_t row = 0; row < rows.size(); ++row) {
    const int64_t first = (rows.begin + row) * n_groups_;
    for (int64_t i = 0; i < n_columns(); ++i) {
      const auto group = static_cast<size_t>(first + group_of_column_[static_cast<size_t>(i)]);
      const int integer = raw[static_cast<size_t>(row * n_columns() + i)];
      const int value = layout_ == WeightLayout::kMxfp4
                            ? ops::code_value(ops::QuantCodes::kE2m1, integer)
                            : integer - zeros_[group];
      out[row * n_columns() + i] = scales_[group] * static_cast<float>(value);
    }
  }
}

// The tensors of a projection, checked.
struct QuantizedTensors::Found {
  Tensor packed;
  Tensor scales;
  Tensor zeros;   // may be missing
  Tensor groups;  // the group of each input; may be missing
  int64_t group_size = 0;
  int64_t n_groups = 0;
};

int64_t QuantizedTensors::n_out(const std::string& projection) const {
  const Packing packing = packing_of(config_);
  const std::vector<int64_t>& shape = checkpoint_.find(projection + packing.suffix).info->shape;
  if (config_.layout == WeightLayout::kMxfp4) return shape.at(0) * shape.at(1);
  return packing.inputs_first ? shape.at(1) * packing.per_column : shape.at(0);
}

bool QuantizedTensors::has(const std::string& projection) const {
  const Packing packing = packing_of(config_);
  if (packing.suffix == nullptr) return false;
  const TensorInfo* info = checkpoint_.find(projection + packing.suffix).info;
  const bool may_be_floats = config_.layout == WeightLayout::kIntQuantized;
  return info != nullptr && (!may_be_floats || info->type_name == "I8");
}

QuantizedTensors::Found QuantizedTensors::find(const Projection& projection) const {
  const std::string& name = projection.name;
  const int64_t in = projection.n_in;
  const int64_t out = projection.n_out;
  const int64_t per = 32 / config_.num_bits;
  Found found;
  found.group_size = config_.group_size == 0 ? in : std::min<int64_t>(config_.group_size, in);
  found.n_groups = divided_up(in, found.group_size);
  const int64_t groups = found.n_groups;
  const auto entry = [this](const Wanted& wanted) { return find_tensor(checkpoint_, wanted); };
  const auto optional_entry = [this, &entry](const Wanted& wanted) {
    const bool is_there = checkpoint_.find(wanted.name).info != nullptr;
    return is_there ? entry(wanted) : Tensor{};
  };
  if (config_.layout == WeightLayout::kMxfp4) {
    const auto at = checkpoint_.find(name + "_blocks");
    const bool has_experts = at.info != nullptr && !at.info->shape.empty();
    const int64_t experts = has_experts ? std::max<int64_t>(1, at.info->shape[0]) : 1;
    found.packed = entry({name + "_blocks", "U8", {{experts, out / experts, groups, 16}}});
    found.scales = entry({name + "_scales", "U8", {{experts, out / experts, groups}}});
    if (out % experts != 0 || in % 32 != 0) {
      found.packed.fail(fmt::format("cannot hold {} outputs of {} inputs", out, in));
    }
    return found;
  }
  if (config_.layout == WeightLayout::kGptq || config_.layout == WeightLayout::kAwq) {
    const bool gptq = config_.layout == WeightLayout::kGptq;
    const bool whole = out % per == 0 && (!gptq || in % per == 0);
    if (!whole) {
      throw Error(
          fmt::format("{}: projection \"{}\" of {} outputs and {} inputs cannot be packed "
                      "in words of {}",
                      checkpoint_.origin(),
                      name,
                      out,
                      in,
                      per));
    }
    const std::vector<int64_t> packed_shape = {gptq ? in / per : in, gptq ? out : out / per};
    found.packed = entry({name + ".qweight", "I32", {packed_shape}});
    found.scales = entry({name + ".scales", "", {{groups, out}}});
    found.zeros = entry({name + ".qzeros", "I32", {{groups, out / per}}});
    if (gptq) found.groups = optional_entry({name + ".g_idx", "I32", {{in}}});
    return found;
  }
  const bool bytes = config_.layout == WeightLayout::kIntQuantized;
  found.packed = bytes ? entry({name + ".weight", "I8", {{out, in}}})
                       : entry({name + ".weight_packed", "I32", {{out, divided_up(in, per)}}});
  std::vector<std::vector<int64_t>> shapes = {{out, groups}};
  if (groups == 1) shapes.insert(shapes.end(), {{out}, {1}, {}});
  found.scales = entry({name + ".weight_scale", "", shapes});
  if (!config_.symmetric) {
    if (!bytes) shapes = {{divided_up(out, per), groups}};
    found.zeros = entry({name + ".weight_zero_point", bytes ? "I8" : "I32", shapes});
  }
  found.groups = optional_entry({name + ".weight_g_idx", "I32", {{in}}});
  return found;
}

std::vector<int32_t> QuantizedTensors::group_of_inputs(const Projection& projection,
                                                       const Found& found) const {
  std::vector<int32_t> group(static_cast<size_t>(projection.n_in));
  for (size_t i = 0; i < group.size(); ++i) {
    group[i] = static_cast<int32_t>(static_cast<int64_t>(i) / found.group_size);
  }
  if (found.groups.info == nullptr) return group;
  const auto raw = read_rectangle(found.groups, projection.n_in, {0, 1}, {0, projection.n_in}, 4);
  for (size_t i = 0; i < group.size(); ++i) {
    const auto index = static_cast<int32_t>(word_at(raw, static_cast<int64_t>(i)));
    // compressed-tensors writes -1 for "not set".
    if (index == -1 && config_.layout == WeightLayout::kPackQuantized) continue;
    if (index < 0 || index >= found.n_groups) {
      found.groups.fail(fmt::format(
          "names group {} for input {}; there are {} groups", index, i, found.n_groups));
    }
    group[i] = index;
  }
  return group;
}

QuantizedTensors::Form QuantizedTensors::expect(const Projection& projection) const {
  const Found found = find(projection);
  const std::vector<int32_t> group = group_of_inputs(projection, found);
  Form form;
  form.scale_dtype = found.scales.info->dtype.value_or(ops::DType::kBF16);  // mxfp4: as it is run
  form.group_size = found.group_size;
  for (size_t i = 0; i < group.size(); ++i) {
    form.in_order = form.in_order && group[i] == static_cast<int64_t>(i) / found.group_size;
  }
  if (found.zeros.info == nullptr) return form;
  QuantizedPart zeros_only;
  zeros_only.rows_ = {0, projection.n_out};
  read_zeros(found, {0, found.n_groups}, zeros_only);
  const uint8_t half = static_cast<uint8_t>(1 << (config_.num_bits - 1));
  form.symmetric = std::all_of(zeros_only.zeros_.begin(),
                               zeros_only.zeros_.end(),
                               [half](uint8_t zero) { return zero == half; });
  return form;
}

// groups: of the file, those the part keeps.
void QuantizedTensors::read_scales(const Found& found, Range groups, QuantizedPart& part) const {
  if (config_.layout == WeightLayout::kMxfp4) {
    for (const std::byte power :
         read_rectangle(found.scales, found.n_groups, part.rows_, groups, 1)) {
      const int exponent = std::to_integer<int>(power);
      if (exponent == kFp4NaN) found.scales.fail("holds NaN");
      // Less than the smallest normal float is as good as none.
      part.scales_.push_back(exponent < 2 ? 0.0f : std::ldexp(1.0f, exponent - 127 - 1));
    }
    return;
  }
  const ops::DType dtype = *found.scales.info->dtype;
  const auto element = static_cast<int64_t>(ops::dtype_bytes(dtype));
  const bool by_group =
      config_.layout == WeightLayout::kGptq || config_.layout == WeightLayout::kAwq;
  const bool is_one = !by_group && found.scales.info->end - found.scales.info->begin ==
                                       static_cast<uint64_t>(element);
  const int64_t n_out = by_group ? found.scales.info->shape[1] : 0;
  const auto raw = is_one ? read_rectangle(found.scales, 1, {0, 1}, {0, 1}, element)
                   : by_group
                       ? read_rectangle(found.scales, n_out, groups, part.rows_, element)
                       : read_rectangle(found.scales, found.n_groups, part.rows_, groups, element);
  const std::vector<float> values = widen(raw, dtype);
  const int64_t rows = part.n_rows();
  part.scales_.resize(static_cast<size_t>(rows * groups.size()));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < groups.size(); ++g) {
      const int64_t at = is_one ? 0 : by_group ? g * rows + row : row * groups.size() + g;
      const float scale = values[static_cast<size_t>(at)];
      if (!std::isfinite(scale)) found.scales.fail("holds NaN or infinity");
      part.scales_[static_cast<size_t>(row * groups.size() + g)] = scale;
    }
  }
}

void QuantizedTensors::read_zeros(const Found& found, Range groups, QuantizedPart& part) const {
  const int64_t rows = part.n_rows();
  const int half = 1 << (config_.num_bits - 1);
  part.zeros_.assign(static_cast<size_t>(rows * groups.size()), static_cast<uint8_t>(half));
  if (found.zeros.info == nullptr) return;
  const auto set = [&](int64_t row, int64_t g, uint32_t zero) {
    part.zeros_[static_cast<size_t>(row * groups.size() + g)] = static_cast<uint8_t>(zero);
  };
  if (config_.layout == WeightLayout::kIntQuantized) {
    const bool is_one = found.zeros.info->end - found.zeros.info->begin == 1;
    const auto raw = is_one ? read_rectangle(found.zeros, 1, {0, 1}, {0, 1}, 1)
                            : read_rectangle(found.zeros, found.n_groups, part.rows_, groups, 1);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t g = 0; g < groups.size(); ++g) {
        const int64_t at = is_one ? 0 : row * groups.size() + g;
        set(row, g, std::to_integer<uint32_t>(raw[static_cast<size_t>(at)]) ^ 0x80u);
      }
    }
    return;
  }
  // Words of consecutive outputs: a row of them is a group (gptq, awq) or a column is (packed).
  const int64_t per = 32 / config_.num_bits;
  const uint32_t mask = (1u << config_.num_bits) - 1;
  const uint32_t less_one = config_.num_bits == 4 ? 0x11111111u : 0x01010101u;
  const Range words = {part.rows_.begin / per, divided_up(part.rows_.end, per)};
  const bool group_rows = config_.layout != WeightLayout::kPackQuantized;
  const auto raw = group_rows
                       ? read_rectangle(found.zeros, found.zeros.info->shape[1], groups, words, 4)
                       : read_rectangle(found.zeros, found.n_groups, words, groups, 4);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t output = part.rows_.begin + row;
    const int64_t word = output / per - words.begin;
    const int shift = config_.layout == WeightLayout::kAwq
                          ? kAwqShift[output % 8]
                          : static_cast<int>(output % per) * config_.num_bits;
    for (int64_t g = 0; g < groups.size(); ++g) {
      const int64_t at = group_rows ? g * words.size() + word : word * groups.size() + g;
      const uint32_t bits = word_at(raw, at) + (config_.zeros_less_one ? less_one : 0u);
      set(row, g, bits >> shift & mask);
    }
  }
}

QuantizedPart QuantizedTensors::read(const Projection& projection,
                                     Range rows,
                                     Range columns) const {
  OUTRIDER_CHECK(rows.begin >= 0 && rows.begin <= rows.end && rows.end <= projection.n_out);
  OUTRIDER_CHECK(columns.begin >= 0 && columns.begin < columns.end &&
                 columns.end <= projection.n_in);
  const Found found = find(projection);
  const Packing packing = packing_of(config_);
  QuantizedPart part;
  part.name_ = projection.name;
  part.layout_ = config_.layout;
  part.num_bits_ = config_.num_bits;
  part.rows_ = rows;
  part.columns_ = columns;
  const auto in_file = [](Range range, int64_t per) {
    return Range{range.begin / per, divided_up(range.end, per)};
  };
  part.file_rows_ = in_file(packing.inputs_first ? columns : rows, packing.per_row);
  part.file_columns_ = in_file(packing.inputs_first ? rows : columns, packing.per_column);
  const int64_t width = packing.inputs_first ? projection.n_out : projection.n_in;
  part.packed_ = read_rectangle(found.packed,
                                divided_up(width, packing.per_column),
                                part.file_rows_,
                                part.file_columns_,
                                found.packed.info->type_name == "I32" ? 4 : 1);
  const std::vector<int32_t> group = group_of_inputs(projection, found);
  part.group_of_column_.assign(group.begin() + columns.begin, group.begin() + columns.end);
  const auto [low, high] =
      std::minmax_element(part.group_of_column_.begin(), part.group_of_column_.end());
  const Range groups = {*low, *high + 1};
  part.n_groups_ = groups.size();
  for (int32_t& index : part.group_of_column_) index -= static_cast<int32_t>(groups.begin);
  read_scales(found, groups, part);
  read_zeros(found, groups, part);
  return part;
}

std::optional<std::string> QuantizedTensors::projection_of(const std::string& tensor_name) const {
  constexpr std::string_view kSuffix = ".weight";
  if (!tensor_name.ends_with(kSuffix)) return std::nullopt;
  std::string projection = tensor_name.substr(0, tensor_name.size() - kSuffix.size());
  if (!has(projection)) return std::nullopt;
  return projection;
}

std::optional<ops::QuantFormat> QuantizedTensors::runnable_format(
    const Projection& projection) const {
  if (!has(projection.name)) return std::nullopt;
  const Form form = expect(projection);
  const bool has_powers = config_.layout == WeightLayout::kMxfp4;
  const bool one_group = form.group_size >= projection.n_in;
  const bool known_size = one_group || form.group_size == 32 || form.group_size == 64 ||
                          form.group_size % ops::kQuantStretch == 0;
  const bool has_zeros_of_8_bits = config_.num_bits == 8 && !form.symmetric;
  if (!form.in_order || !known_size || has_zeros_of_8_bits) return std::nullopt;
  const bool as_halves = form.symmetric && form.scale_dtype == ops::DType::kF16;
  return ops::QuantFormat{.bits = config_.num_bits,
                          .group_size = one_group ? 0 : form.group_size,
                          .scales = has_powers  ? ops::QuantScales::kPowers
                                    : as_halves ? ops::QuantScales::kFloat16
                                                : ops::QuantScales::kFloat32,
                          .codes = has_powers ? ops::QuantCodes::kE2m1 : ops::QuantCodes::kLinear};
}

void QuantizedTensors::fill(const std::string& projection,
                            const TensorPart& part,
                            int64_t first_row,
                            ops::PackedMatrix& to) const {
  const Projection whole = {projection, n_out(projection), part.n_columns};
  const QuantizedPart own = read(whole, part.rows, part.columns);
  const int64_t groups = own.n_groups_;
  OUTRIDER_CHECK(to.n_in() == own.n_columns() && to.quant_groups().count() == groups);
  std::vector<int8_t> values(static_cast<size_t>(kBlockRows * own.n_columns()));
  for (int64_t row = 0; row < own.n_rows(); row += kBlockRows) {
    const Range rows = {row, std::min(own.n_rows(), row + kBlockRows)};
    if (config_.num_bits == 8) {
      own.signed_values(rows, values.data());
    } else {
      own.integers(rows, reinterpret_cast<uint8_t*>(values.data()));
    }
    to.fill_integers(first_row + row,
                     rows.size(),
                     {.values = values.data(),
                      .values_stride = own.n_columns(),
                      .scales = own.scales_.data() + row * groups,
                      .scales_stride = groups,
                      .zeros = own.zeros_.data() + row * groups});
  }
}

ops::DType QuantizedTensors::float_type(const Projection& projection) const {
  return expect(projection).scale_dtype;
}

void QuantizedTensors::read_floats(const std::string& projection,
                                   const TensorPart& part,
                                   std::byte* out) const {
  const Projection whole = {projection, n_out(projection), part.n_columns};
  const ops::DType dtype = float_type(whole);
  const QuantizedPart own = read(whole, part.rows, part.columns);
  std::vector<float> values;
  for (int64_t row = 0; row < own.n_rows(); row += kBlockRows) {
    const Range rows = {row, std::min(own.n_rows(), row + kBlockRows)};
    values.resize(static_cast<size_t>(rows.size() * own.n_columns()));
    own.dequantize(rows, values.data());
    out = narrow(values, dtype, out);
  }
}

}  // namespace outrider
