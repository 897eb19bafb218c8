// The mass of a row by AVX-512, in half the operations of fixed_weight() and with its bits; used by
// row_kernels.cpp only.
#pragma once

#include <cstdint>

#include "scheduler/rows/row_kernels.h"

namespace outrider {

#if defined(__x86_64__) && defined(__GNUC__)
// Adds to *sum what RowKernels::mass has for the values from the first on, in whole stretches, up
// to one whose weights it cannot tell for certain or to a shorter last one; returns how many values
// that are.
int32_t certain_mass_avx512(const float* values,
                            int32_t count,
                            const WeightScale& scale,
                            uint64_t* sum);
#endif

}  // namespace outrider
