// The inner kernels of quantised products, one table per way a CPU has to multiply bytes. As
// kernels.h: raw pointers only, nothing of the standard library but integer types. Invariant: all
// tables give the same bits. Sums of integers are exact; floats are rounded at the same places in
// the same order everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::ops::cpu {

// A stretch of the inner dimension that has one weight scale per output and one activation scale
// per row: it lies within one group, one slice of the sum, and 128 inputs.
struct QuantStretch {
  int64_t supers = 0;   // bytes from the panel's start to its super-block's scales
  int64_t header = 0;   // and to its group's
  int64_t weights = 0;  // and to its first weights
  int64_t begin = 0;    // first input
  int64_t count = 0;    // inputs
  int64_t padded = 0;   // the same in whole blocks of 8
  int64_t before = 0;   // sum of padded over the stretches before
};

// The activations of a call as integers. Stretch s: value_bytes per input, [rows, s.padded] from
// values + s.before * rows * value_bytes; scales and sums at s * rows + row. Every integer is
// within -127 .. 127; x is about scale * integer. A stretch with NaN or inf has the scale NaN.
struct QuantActivations {
  char* values = nullptr;
  float* scales = nullptr;
  int32_t* minus_sums = nullptr;  // -(sum of the stretch's integers)
  int64_t rows = 0;
};

// QuantScales of quantized.h.
enum class PanelScales { kFloat32, kFloat16, kSuperBlocks, kPowers };

// The integers that 16 codes stand for, each plus `zero`.
struct CodeTable {
  alignas(16) uint8_t integers[16];
  int32_t zero;
};

enum class QuantKind { k8, k6, k4, k4Zeros, k4Codes, k8Offsets, k6Offsets, k4Offsets };
inline constexpr int kNumQuantKinds = 8;

// totals[r * 64 + o] = sum over the stretches, in order, of float(integer sum) * (weight scale *
// activation scale), one fma each, for rows first_row .. first_row + num_rows. With out, and at
// least one stretch, the sums go there and totals is scratch.
struct QuantPanel {
  const char* panel = nullptr;
  PanelScales scales = PanelScales::kFloat32;
  const CodeTable* codes = nullptr;         // of k4Codes
  int64_t header_bytes = 0;                 // of a group
  const QuantStretch* stretches = nullptr;  // of the whole product
  int64_t first_stretch = 0;
  int64_t end_stretch = 0;
  QuantActivations activations;
  int64_t first_row = 0;
  int64_t num_rows = 0;     // at least 1
  float* totals = nullptr;  // [num_rows, 64]
  float* out = nullptr;     // null, or the panel's outputs of the first row
  int64_t out_stride = 0;
};

struct QuantKernels {
  const char* name;
  int64_t value_bytes;  // of one activation
  // Quantises one row's stretch: x has stretch.count floats; writes row `row` of `to`.
  void (*quantize)(const float* x,
                   const QuantStretch& stretch,
                   int64_t index,
                   const QuantActivations& to,
                   int64_t row);
  // By QuantKind. k4Zeros: with zero points, of float32 scales; else they are 8. With offsets:
  // before each of those fmas one of offset * (activation scale * integer sum).
  void (*panel[kNumQuantKinds])(const QuantPanel&);
};

// Defined in kernels_int8<name>.cpp.
extern const QuantKernels kScalarQuantKernels;
extern const QuantKernels kAvx2QuantKernels;        // products of 16-bit integers
extern const QuantKernels kAvxVnniQuantKernels;     // byte dot products in 256 bits
extern const QuantKernels kAvx512QuantKernels;      // products of 16-bit integers
extern const QuantKernels kAvx512VnniQuantKernels;  // byte dot products in 512 bits

}  // namespace outrider::ops::cpu
