// Quantised matrices: format checks, quantising, and packing into panels (see quantized.h and
// tensor.h). Called while a model is loaded; filling different rows of one matrix from different
// threads is safe.
#include "runtime/ops/quantized.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/int8/int8_choice.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/half.h"
#include "runtime/ops/tensor.h"

namespace outrider::ops {
namespace {

using cpu::kPanel;
static_assert(kPanel == 64);  // quantized.h spells it out

constexpr int64_t padded(int64_t num_inputs) {
  return (num_inputs + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
}

// Below this, numbers are zeros: 127 divided by it is still a float.
constexpr float kSmallest = 0x1p-120f;

// Nearest even, for |x| < 2^22.
float round_even(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// The largest |x|; of numbers among which is one that is not finite: inf or NaN. As integers, which
// order the same way, compilers can take many at once.
float largest_magnitude(const float* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & INT32_MAX);
  }
  return std::bit_cast<float>(largest);
}

QuantizedGroup quantize_group_8(const float* x, int64_t count, float largest, uint8_t* integers) {
  if (largest < kSmallest) {
    std::memset(integers, 128, static_cast<size_t>(count));
    return {0.0f, 0, 0.0f};
  }
  const float per_unit = 127.0f / largest;
  for (int64_t i = 0; i < count; ++i) {
    integers[i] = static_cast<uint8_t>(static_cast<int32_t>(round_even(x[i] * per_unit)) + 128);
  }
  return {largest / 127.0f, 0, 0.0f};
}

QuantizedGroup quantize_group_4(const float* x, int64_t count, uint8_t* integers) {
  float low = 0.0f;
  float high = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const float scale = high / 15.0f - low / 15.0f;  // their difference might not be finite
  if (scale < kSmallest) {
    std::memset(integers, 8, static_cast<size_t>(count));
    return {0.0f, 8, 0.0f};
  }
  const float zero = std::clamp(round_even(-low / scale), 0.0f, 15.0f);
  for (int64_t i = 0; i < count; ++i) {
    integers[i] = static_cast<uint8_t>(std::clamp(round_even(x[i] / scale) + zero, 0.0f, 15.0f));
  }
  return {scale, static_cast<uint8_t>(zero), 0.0f};
}

// Sums over the numbers x and their integers q = clamp(round(x * per_unit)): with the scale
// products / squares the error is that of no other scale for these integers, and smaller by
// products^2 / squares than of zeros.
struct Fit {
  float products = 0.0f;  // x * q
  float squares = 0.0f;   // q * q
};
constexpr int kFitSteps = 12;
constexpr float kFitStep = 0.15f;

// numbers: whole blocks. Eight sums side by side, so that compilers can take them at once.
Fit fit_of(const std::vector<float>& numbers, float per_unit) {
  float products[kQuantBlock] = {};
  float squares[kQuantBlock] = {};
  for (size_t i = 0; i < numbers.size(); i += kQuantBlock) {
    for (size_t j = 0; j < kQuantBlock; ++j) {
      const float x = numbers[i + j];
      const float q = std::clamp(round_even(x * per_unit), -8.0f, 7.0f);
      products[j] += x * q;
      squares[j] += q * q;
    }
  }
  Fit fit;
  for (const float product : products) fit.products += product;
  for (const float square : squares) fit.squares += square;
  return fit;
}

// One output's integers of one group into its panel; integers is padded to whole blocks.
struct GroupPlace {
  std::byte* group;  // in the panel
  int64_t lane;
  int64_t count;  // inputs, whole blocks
};

float number_at(QuantScales type, const std::byte* numbers, int64_t index) {
  if (type == QuantScales::kSuperBlocks) return std::bit_cast<int8_t>(numbers[index]);
  if (type == QuantScales::kPowers) {
    return std::bit_cast<float>(std::to_integer<uint32_t>(numbers[index]) << 23);
  }
  uint32_t bits = 0;
  std::memcpy(&bits,
              numbers + index * (type == QuantScales::kFloat32 ? 4 : 2),
              type == QuantScales::kFloat32 ? 4 : 2);
  return type == QuantScales::kFloat32 ? std::bit_cast<float>(bits)
                                       : f16_to_float(static_cast<uint16_t>(bits));
}

// One of a row of 64 or 128 numbers, which the scales' type must hold exactly (NaN is NaN).
void place_number(QuantScales type, std::byte* numbers, int64_t index, float value) {
  float kept = value;
  if (type == QuantScales::kFloat32) {
    std::memcpy(numbers + index * 4, &value, 4);
  } else if (type == QuantScales::kFloat16) {
    const uint16_t bits = float_to_f16(value);
    std::memcpy(numbers + index * 2, &bits, 2);
    kept = f16_to_float(bits);
  } else if (type == QuantScales::kPowers) {
    numbers[index] = static_cast<std::byte>(std::bit_cast<uint32_t>(value) >> 23);
    kept = number_at(type, numbers, index);
  } else {
    const auto integer = static_cast<int8_t>(std::clamp(value, -128.0f, 127.0f));
    std::memcpy(numbers + index, &integer, 1);
    kept = integer;
  }
  OUTRIDER_CHECK(kept == value || std::isnan(value));
}

void place_header(const QuantLayout& layout, const GroupPlace& place, QuantizedGroup header) {
  const QuantFormat& format = layout.format;
  place_number(format.scales, place.group, place.lane, header.scale);
  if (format.has_offsets) {
    place_number(format.scales, place.group, kPanel + place.lane, header.offset);
  } else if (format.has_zero_points()) {
    std::memcpy(place.group + kPanel * 4 + place.lane, &header.zero, 1);
  } else {
    OUTRIDER_CHECK(format.bits != 4 || header.zero == 8);
  }
}

// The stored integer that stands for zero, where there are no zero points.
int zero_of(const QuantFormat& format) {
  if (format.bits == 8) return 128;
  if (format.bits == 6) return 32;
  if (format.codes != QuantCodes::kLinear) return cpu::code_table(format.codes).zero;
  return format.has_offsets ? 0 : 8;
}

// What a group's header says of one output.
QuantizedGroup header_of(const QuantLayout& layout,
                         const std::byte* panel,
                         int64_t group,
                         int64_t lane) {
  const QuantFormat& format = layout.format;
  const std::byte* at = panel + layout.group_offset(group);
  QuantizedGroup header{
      number_at(format.scales, at, lane), static_cast<uint8_t>(zero_of(format)), 0.0f};
  if (format.has_offsets) header.offset = number_at(format.scales, at, kPanel + lane);
  if (format.has_zero_points()) header.zero = std::to_integer<uint8_t>(at[kPanel * 4 + lane]);
  if (format.scales == QuantScales::kSuperBlocks) {
    const std::byte* supers =
        panel + layout.super_offset(layout.super_of(layout.groups.begin(group)));
    header.scale *= number_at(QuantScales::kFloat16, supers, lane);
    if (format.has_offsets)
      header.offset *= number_at(QuantScales::kFloat16, supers, kPanel + lane);
  }
  return header;
}

// Where the high two bits of a 6-bit output lie among those of its panel's eight inputs.
struct HighBits {
  int64_t offset;  // bytes
  int shift;       // of the first four inputs; the others' are two further on
};
HighBits high_bits_of(int64_t lane) {
  return {(lane / 32 * 16 + lane % 16) * 4, lane % 32 < 16 ? 0 : 4};
}

void place_integers(const QuantLayout& layout, const GroupPlace& place, const uint8_t* integers) {
  std::byte* weights = place.group + layout.header_bytes();
  const int bits = layout.format.bits;
  if (bits == 8) {
    for (int64_t i = 0; i < place.count; i += 4) {
      std::memcpy(weights + (i / 4 * kPanel + place.lane) * 4, integers + i, 4);
    }
    return;
  }
  constexpr uint32_t kLowHalves = 0x0F0F0F0F;
  for (int64_t i = 0; i < place.count; i += 8) {
    std::byte* const eight = weights + layout.weight_bytes(i);
    uint32_t first = 0;
    uint32_t second = 0;
    std::memcpy(&first, integers + i, 4);
    std::memcpy(&second, integers + i + 4, 4);
    const uint32_t low = (first & kLowHalves) | (second & kLowHalves) << 4;
    std::memcpy(eight + place.lane * 4, &low, 4);
    if (bits == 4) continue;
    const HighBits high = high_bits_of(place.lane);
    std::byte* const at = eight + kPanel * 4 + high.offset;
    const uint32_t own = (first >> 4 & 0x03030303) | (second >> 4 & 0x03030303) << 2;
    // Another thread may place the other output of this word meanwhile.
    const std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(at));
    word.fetch_and(~(kLowHalves << high.shift), std::memory_order_relaxed);
    word.fetch_or(own << high.shift, std::memory_order_relaxed);
  }
}

// The stored integer of an output's input i of its group.
int integer_at(const QuantLayout& layout, const std::byte* weights, int64_t lane, int64_t i) {
  const int64_t byte = lane * 4 + i % 4;
  if (layout.format.bits == 8) return std::to_integer<int>(weights[i / 4 * kPanel * 4 + byte]);
  const std::byte* const eight = weights + layout.weight_bytes(i / 8 * 8);
  const int low = std::to_integer<int>(eight[byte]) >> (i % 8 < 4 ? 0 : 4) & 15;
  if (layout.format.bits == 4) return low;
  const HighBits high = high_bits_of(lane);
  const int two = std::to_integer<int>(eight[kPanel * 4 + high.offset + i % 4]) >> high.shift;
  return low | (two >> (i % 8 < 4 ? 0 : 2) & 3) << 4;
}

std::byte* group_of(std::byte* data, const QuantLayout& layout, int64_t panel, int64_t group) {
  return data + static_cast<size_t>(panel) * layout.panel_bytes() + layout.group_offset(group);
}

// Calls fill(row, group, integers) -> header for each row and group, rows within; writes what it
// made. Group by group over the rows of one panel, so that writes stay near each other.
template <typename Fill>
void fill_panels(std::byte* data,
                 const QuantLayout& layout,
                 int64_t out_begin,
                 int64_t num_rows,
                 const Fill& fill) {
  const QuantGroups& groups = layout.groups;
  std::vector<uint8_t> integers(static_cast<size_t>(padded(std::min(groups.size, groups.n_in))));
  for (int64_t row = 0; row < num_rows;) {
    const int64_t panel = (out_begin + row) / kPanel;
    const int64_t rows_end = std::min(num_rows, (panel + 1) * kPanel - out_begin);
    for (int64_t group = 0; group < groups.count(); ++group) {
      GroupPlace place{group_of(data, layout, panel, group), 0, 0};
      place.count = padded(groups.end(group) - groups.begin(group));
      for (int64_t r = row; r < rows_end; ++r) {
        place.lane = (out_begin + r) % kPanel;
        place_header(layout, place, fill(r, group, integers.data()));
        std::fill(integers.begin() + (groups.end(group) - groups.begin(group)),
                  integers.begin() + place.count,
                  0);
        place_integers(layout, place, integers.data());
      }
    }
    row = rows_end;
  }
}

void fill_supers(std::byte* data,
                 const QuantLayout& layout,
                 int64_t out_begin,
                 int64_t num_rows,
                 const SuperScales& supers) {
  for (int64_t row = 0; row < num_rows; ++row) {
    std::byte* panel =
        data + static_cast<size_t>((out_begin + row) / kPanel) * layout.panel_bytes();
    const int64_t lane = (out_begin + row) % kPanel;
    for (int64_t s = 0; s < layout.num_supers(); ++s) {
      std::byte* to = panel + layout.super_offset(s);
      const int64_t at = row * supers.stride + s;
      place_number(QuantScales::kFloat16, to, lane, supers.scales[at]);
      if (layout.format.has_offsets)
        place_number(QuantScales::kFloat16, to, kPanel + lane, supers.offsets[at]);
    }
  }
}

size_t quantized_bytes(int64_t n_out, const QuantLayout& layout) {
  const std::string what =
      "quantised matrix of " + std::to_string(n_out) + " x " + std::to_string(layout.groups.n_in);
  constexpr int64_t kMost = int64_t{1} << 48;  // of either side: sums below cannot overflow
  size_t bytes = 0;
  if (n_out > kMost ||
      __builtin_mul_overflow(
          layout.panel_bytes(), static_cast<size_t>((n_out + kPanel - 1) / kPanel), &bytes)) {
    throw Error(what + " is too large to address");
  }
  return bytes;
}

// Checks before anything is computed from the sizes.
QuantLayout checked_layout(int64_t n_out, int64_t n_in, const QuantFormat& format, int64_t begin) {
  check_quant_format(format);
  const std::string what =
      "quantised matrix of " + std::to_string(n_out) + " x " + std::to_string(n_in);
  if (n_out < 0 || n_in < 0) throw Error(what + " has a negative size");
  if (n_in > int64_t{1} << 48) throw Error(what + " is too large to address");
  if (n_in > 0) check_quant_cuts("quantised matrix", begin, {});
  return {format, QuantGroups(format, n_in, begin), begin % kQuantSuperBlock};
}

}  // namespace

int code_value(QuantCodes codes, int code) {
  const cpu::CodeTable& table = cpu::code_table(codes);
  return table.integers[code] - table.zero;
}

void check_quant_format(const QuantFormat& format) {
  if (format.bits != 8 && format.bits != 6 && format.bits != 4) {
    throw Error("quantised weights of " + std::to_string(format.bits) +
                " bits cannot be run; 8, 6 and 4 can");
  }
  const int64_t size = format.group_size;
  if (size != 0 && size != 16 && size != 32 && size != 64 &&
      (size < 0 || size % kQuantStretch != 0 || size > INT32_MAX)) {
    throw Error("quantisation groups of " + std::to_string(size) +
                " inputs cannot be run; 16, 32, 64, multiples of 128 and 0 (all inputs) can");
  }
  const bool is_plain =
      format.scales != QuantScales::kPowers && format.codes == QuantCodes::kLinear;
  if (!is_plain && (format.bits != 4 || format.has_offsets)) {
    throw Error(
        "quantised weights with powers of two as scales, or with codes, have 4 bits and no "
        "offsets");
  }
  if (format.scales == QuantScales::kSuperBlocks && (size == 0 || kQuantSuperBlock % size != 0)) {
    throw Error("quantisation groups of " + std::to_string(size) +
                " inputs do not divide super-blocks of " + std::to_string(kQuantSuperBlock));
  }
}

void check_quant_cuts(const char* what, int64_t in_begin, std::span<const int64_t> slice_ends) {
  const std::string step = std::to_string(kQuantBlock);
  if (in_begin < 0 || in_begin % kQuantBlock != 0) {
    throw Error(std::string(what) + ": a shard of quantised weights cannot begin at input " +
                std::to_string(in_begin) + ", only at multiples of " + step);
  }
  for (size_t i = 0; i + 1 < slice_ends.size(); ++i) {
    if (slice_ends[i] % kQuantBlock != 0 && slice_ends[i] != slice_ends.back()) {
      throw Error(std::string(what) + ": the sums of quantised weights cannot be cut at input " +
                  std::to_string(in_begin + slice_ends[i]) + ", only at multiples of " + step);
    }
  }
}

QuantGroups::QuantGroups(const QuantFormat& format, int64_t num_inputs, int64_t in_begin)
    : n_in(num_inputs), size(format.group_size == 0 ? num_inputs : format.group_size) {
  const int64_t begun = format.group_size == 0 ? 0 : in_begin % size;
  first = std::min(size - begun, n_in);
}

size_t QuantLayout::panel_bytes() const {
  const int64_t num_groups = groups.count();
  if (num_groups == 0) return 0;
  const int64_t last = num_groups - 1;
  return group_offset(last) + group_bytes(groups.end(last) - groups.begin(last));
}

QuantizedGroup quantize_group(int bits, const float* x, int64_t count, uint8_t* integers) {
  const float largest = largest_magnitude(x, count);
  if (!std::isfinite(largest)) {
    std::memset(integers, bits == 8 ? 128 : 8, static_cast<size_t>(count));
    return {std::numeric_limits<float>::quiet_NaN(), 8, 0.0f};
  }
  return bits == 8 ? quantize_group_8(x, count, largest, integers)
                   : quantize_group_4(x, count, integers);
}

QuantizedGroup fit_group_4(const float* x, int64_t count, uint8_t* integers) {
  const float largest = largest_magnitude(x, count);
  for (int64_t i = 0; i < count; ++i) integers[i] = 8;
  if (!std::isfinite(largest)) return {std::numeric_limits<float>::quiet_NaN(), 8, 0.0f};
  if (largest < 0x1p-20f) return {0.0f, 8, 0.0f};  // float16 scales have no bits left there
  std::vector<float> numbers(static_cast<size_t>(padded(count)));
  std::copy_n(x, count, numbers.begin());
  const bool is_negative = std::find(x, x + count, -largest) != x + count;
  const float extreme = is_negative ? -largest : largest;
  float best = 0.0f;
  float best_gain = -1.0f;
  for (int step = -kFitSteps; step <= kFitSteps; ++step) {
    // The extreme number becomes -8, or some of a step beyond the ends.
    const float per_unit = (-8.0f + kFitStep * static_cast<float>(step)) / extreme;
    const Fit fit = fit_of(numbers, per_unit);
    if (fit.squares > 0.0f && fit.products * fit.products > best_gain * fit.squares) {
      best_gain = fit.products * fit.products / fit.squares;
      best = fit.products / fit.squares;
    }
  }
  const float scale = f16_to_float(float_to_f16(best));
  if (!std::isfinite(scale) || scale == 0.0f) return {scale, 8, 0.0f};
  for (int64_t i = 0; i < count; ++i) {
    integers[i] = static_cast<uint8_t>(std::clamp(round_even(x[i] / scale), -8.0f, 7.0f) + 8.0f);
  }
  return {scale, 8, 0.0f};
}

PackedMatrix::PackedMatrix(int64_t n_out, int64_t n_in, const QuantFormat& format, int64_t in_begin)
    : n_out_(n_out),
      n_in_(n_in),
      format_(format),
      layout_(checked_layout(n_out, n_in, format, in_begin)),
      in_begin_(in_begin),
      num_bytes_(quantized_bytes(n_out, layout_)),
      data_(allocate_bytes(num_bytes_)) {}

void PackedMatrix::quantize_rows(int64_t out_begin, const FloatRows& rows) {
  const bool is_rounded_to = (format_.bits == 8 || format_.bits == 4) && !format_.has_offsets &&
                             format_.scales == QuantScales::kFloat32 &&
                             format_.codes == QuantCodes::kLinear;
  OUTRIDER_CHECK(is_rounded_to && out_begin >= 0 && rows.num_rows >= 0 &&
                 rows.num_rows <= n_out_ - out_begin);
  const QuantGroups& groups = layout_.groups;
  const int64_t last = groups.count() - 1;
  const auto* const source = static_cast<const std::byte*>(rows.source);
  const auto element = static_cast<int64_t>(dtype_bytes(rows.dtype));
  int64_t before = rows.columns_before;
  int64_t after = rows.columns_after;
  if (const int64_t size = format_.group_size; size != 0) {
    before = std::min(before, in_begin_ % size);
    after = std::min(after, (size - (in_begin_ + n_in_) % size) % size);
  }
  std::vector<float> numbers(static_cast<size_t>(groups.size + before + after));
  std::vector<uint8_t> whole(numbers.size());
  const auto fill = [&](int64_t row, int64_t group, uint8_t* integers) {
    const int64_t extra = group == 0 ? before : 0;
    const int64_t begin = groups.begin(group) - extra;
    const int64_t end = groups.end(group) + (group == last ? after : 0);
    const auto* from = source + (row * rows.stride + begin) * element;
    widen(from, end - begin, rows.dtype, numbers.data());
    const QuantizedGroup header =
        quantize_group(format_.bits, numbers.data(), end - begin, whole.data());
    std::memcpy(integers,
                whole.data() + extra,
                static_cast<size_t>(groups.end(group) - groups.begin(group)));
    return header;
  };
  fill_panels(data_.get(), layout_, out_begin, rows.num_rows, fill);
}

void PackedMatrix::fill_integers(int64_t out_begin, int64_t num_rows, const IntegerRows& rows) {
  OUTRIDER_CHECK(is_quantized() && out_begin >= 0 && num_rows >= 0 &&
                 num_rows <= n_out_ - out_begin);
  const QuantGroups& groups = layout_.groups;
  const int added = format_.bits == 4 ? 0 : 1 << (format_.bits - 1);
  const auto fill = [&](int64_t row, int64_t group, uint8_t* integers) {
    const int8_t* from = rows.values + row * rows.values_stride + groups.begin(group);
    const int64_t count = groups.end(group) - groups.begin(group);
    uint8_t all = 0;
    for (int64_t i = 0; i < count; ++i) {
      integers[i] = static_cast<uint8_t>(from[i] + added);
      all |= integers[i];
    }
    if (all >> format_.bits != 0) {
      throw Error("a weight of " + std::to_string(format_.bits) + " bits is out of their range");
    }
    const int64_t at = row * rows.scales_stride + group;
    const uint8_t zero = rows.zeros == nullptr ? 8 : rows.zeros[at];
    return QuantizedGroup{rows.scales[at], zero, format_.has_offsets ? rows.offsets[at] : 0.0f};
  };
  fill_panels(data_.get(), layout_, out_begin, num_rows, fill);
  fill_supers(data_.get(), layout_, out_begin, num_rows, rows.supers);
}

void PackedMatrix::dequantize_row(int64_t out, float* to) const {
  OUTRIDER_CHECK(is_quantized() && out >= 0 && out < n_out_);
  const QuantGroups& groups = layout_.groups;
  const int64_t lane = out % kPanel;
  const std::byte* panel = data_.get() + static_cast<size_t>(out / kPanel) * layout_.panel_bytes();
  for (int64_t group = 0; group < groups.count(); ++group) {
    const QuantizedGroup header = header_of(layout_, panel, group, lane);
    const std::byte* weights = panel + layout_.group_offset(group) + layout_.header_bytes();
    const int64_t begin = groups.begin(group);
    for (int64_t i = 0; i < groups.end(group) - begin; ++i) {
      const int stored = integer_at(layout_, weights, lane, i);
      const int value = format_.codes == QuantCodes::kLinear ? stored - header.zero
                                                             : code_value(format_.codes, stored);
      const float product = header.scale * static_cast<float>(value);
      to[begin + i] = format_.has_offsets ? product + header.offset : product;
    }
  }
}

}  // namespace outrider::ops
