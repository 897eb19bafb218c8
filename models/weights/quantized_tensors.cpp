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
#include <optional>

#include "models/weights/weight_reader.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

// Of output o % 8 in its word: place p holds output 0, 2, 4, 6, 1, 3, 5, 7.
constexpr int kAwqShift[8] = {0, 16, 4, 20, 8, 24, 12, 28};

// The floats of 4 bits (e2m1), twice.
constexpr int kFp4NaN = 255;  // of scales

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

[[noreturn]] void fail(const Checkpoint::Entry& entry,
                       const std::string& tensor,
                       const std::string& what) {
  throw Error(fmt::format("{}: tensor \"{}\": {}", entry.file->name(), tensor, what));
}

// A tensor of a projection, checked to be there in this type and one of these shapes.
struct Wanted {
  std::string name;
  std::string type_name;  // empty: F32, BF16 or F16
  std::vector<std::vector<int64_t>> shapes;
};

Checkpoint::Entry find_tensor(const Checkpoint& checkpoint, const Wanted& wanted) {
  const Checkpoint::Entry entry = checkpoint.find(wanted.name);
  if (entry.info == nullptr) {
    throw Error(fmt::format("{}: tensor \"{}\" is missing; expected in shape {}",
                            checkpoint.origin(),
                            wanted.name,
                            shape_text(wanted.shapes[0])));
  }
  const auto& shapes = wanted.shapes;
  if (std::find(shapes.begin(), shapes.end(), entry.info->shape) == shapes.end()) {
    fail(entry,
         wanted.name,
         fmt::format("has shape {} but config.json asks for {}",
                     shape_text(entry.info->shape),
                     shape_text(shapes[0])));
  }
  const bool type_fits = wanted.type_name.empty() ? entry.info->dtype.has_value()
                                                  : entry.info->type_name == wanted.type_name;
  if (!type_fits) {
    fail(entry,
         wanted.name,
         fmt::format("is of type {}, not {}",
                     entry.info->type_name,
                     wanted.type_name.empty() ? "F32, BF16 or F16" : wanted.type_name));
  }
  return entry;
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
  Checkpoint::Entry packed;
  Checkpoint::Entry scales;
  Checkpoint::Entry zeros;   // may be missing
  Checkpoint::Entry groups;  // the group of each input; may be missing
  std::string groups_name;
  std::string scales_name;
  std::string zeros_name;
  int64_t packed_columns = 0;
  int64_t group_size = 0;
  int64_t n_groups = 0;
};

int64_t QuantizedTensors::n_out(const std::string& projection) const {
  if (config_.layout == WeightLayout::kMxfp4) {
    const std::vector<int64_t>& shape = checkpoint_.find(projection + "_blocks").info->shape;
    return shape.at(0) * shape.at(1);
  }
  const bool gptq_or_awq =
      config_.layout == WeightLayout::kGptq || config_.layout == WeightLayout::kAwq;
  const char* suffix = gptq_or_awq                                     ? ".qweight"
                       : config_.layout == WeightLayout::kIntQuantized ? ".weight"
                                                                       : ".weight_packed";
  const std::vector<int64_t>& shape = checkpoint_.find(projection + suffix).info->shape;
  if (config_.layout == WeightLayout::kGptq) return shape.at(1);
  return config_.layout == WeightLayout::kAwq ? shape.at(1) * 8 : shape.at(0);
}

bool QuantizedTensors::has(const std::string& projection) const {
  switch (config_.layout) {
    case WeightLayout::kPlain:
    case WeightLayout::kGguf:
    case WeightLayout::kFp8Blocks:
      return false;
    case WeightLayout::kGptq:
    case WeightLayout::kAwq:
      return checkpoint_.find(projection + ".qweight").info != nullptr;
    case WeightLayout::kPackQuantized:
      return checkpoint_.find(projection + ".weight_packed").info != nullptr;
    case WeightLayout::kMxfp4:
      return checkpoint_.find(projection + "_blocks").info != nullptr;
    case WeightLayout::kIntQuantized: {
      const auto entry = checkpoint_.find(projection + ".weight");
      return entry.info != nullptr && entry.info->type_name == "I8";
    }
  }
  return false;
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
    return is_there ? entry(wanted) : Checkpoint::Entry{};
  };
  if (config_.layout == WeightLayout::kMxfp4) {
    const auto at = checkpoint_.find(name + "_blocks");
    const bool has_experts = at.info != nullptr && !at.info->shape.empty();
    const int64_t experts = has_experts ? std::max<int64_t>(1, at.info->shape[0]) : 1;
    found.packed_columns = in / 2;
    found.packed = entry({name + "_blocks", "U8", {{experts, out / experts, groups, 16}}});
    found.scales_name = name + "_scales";
    found.scales = entry({found.scales_name, "U8", {{experts, out / experts, groups}}});
    if (out % experts != 0 || in % 32 != 0) {
      fail(at, name + "_blocks", fmt::format("cannot hold {} outputs of {} inputs", out, in));
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
    found.packed_columns = gptq ? out : out / per;
    found.packed =
        entry({name + ".qweight", "I32", {{gptq ? in / per : in, found.packed_columns}}});
    found.scales_name = name + ".scales";
    found.scales = entry({found.scales_name, "", {{groups, out}}});
    found.zeros_name = name + ".qzeros";
    found.zeros = entry({found.zeros_name, "I32", {{groups, out / per}}});
    found.groups_name = name + ".g_idx";
    if (gptq) found.groups = optional_entry({found.groups_name, "I32", {{in}}});
    return found;
  }
  const bool bytes = config_.layout == WeightLayout::kIntQuantized;
  found.packed_columns = bytes ? in : divided_up(in, per);
  found.packed = bytes ? entry({name + ".weight", "I8", {{out, in}}})
                       : entry({name + ".weight_packed", "I32", {{out, found.packed_columns}}});
  std::vector<std::vector<int64_t>> shapes = {{out, groups}};
  if (groups == 1) shapes.insert(shapes.end(), {{out}, {1}, {}});
  found.scales_name = name + ".weight_scale";
  found.scales = entry({found.scales_name, "", shapes});
  found.zeros_name = name + ".weight_zero_point";
  if (!config_.symmetric) {
    if (!bytes) shapes = {{divided_up(out, per), groups}};
    found.zeros = entry({found.zeros_name, bytes ? "I8" : "I32", shapes});
  }
  found.groups_name = name + ".weight_g_idx";
  found.groups = optional_entry({found.groups_name, "I32", {{in}}});
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
      fail(found.groups,
           found.groups_name,
           fmt::format(
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
  form.powers = config_.layout == WeightLayout::kMxfp4;
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
      if (exponent == kFp4NaN) fail(found.scales, found.scales_name, "holds NaN");
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
      if (!std::isfinite(scale)) fail(found.scales, found.scales_name, "holds NaN or infinity");
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
  const int64_t per = 32 / config_.num_bits;
  QuantizedPart part;
  part.name_ = projection.name;
  part.layout_ = config_.layout;
  part.num_bits_ = config_.num_bits;
  part.rows_ = rows;
  part.columns_ = columns;
  const auto in_words = [per](Range range) {
    return Range{range.begin / per, divided_up(range.end, per)};
  };
  switch (config_.layout) {
    case WeightLayout::kGptq:
      part.file_rows_ = in_words(columns);
      part.file_columns_ = rows;
      break;
    case WeightLayout::kAwq:
      part.file_rows_ = columns;
      part.file_columns_ = in_words(rows);
      break;
    case WeightLayout::kPackQuantized:
      part.file_rows_ = rows;
      part.file_columns_ = in_words(columns);
      break;
    case WeightLayout::kMxfp4:
      part.file_rows_ = rows;
      part.file_columns_ = {columns.begin / 2, divided_up(columns.end, 2)};
      break;
    default:
      part.file_rows_ = rows;
      part.file_columns_ = columns;
  }
  part.packed_ = read_rectangle(found.packed,
                                found.packed_columns,
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

}  // namespace outrider
