// From an instruction set's name to the kernels of quantised products, by what more the CPU has,
// and from codes to their integers.
#pragma once

#include <vector>

#include "runtime/ops/cpu/int8/int8_kernels.h"
#include "runtime/ops/ops.h"
#include "runtime/ops/quantized.h"

namespace outrider::ops::cpu {

// The fastest table within an instruction set this CPU has.
const QuantKernels& quant_kernels_of(Isa isa);

// All tables this CPU can run, for tests: their results have the same bits.
std::vector<const QuantKernels*> all_quant_kernels();

// Of codes that are not linear.
const CodeTable& code_table(QuantCodes codes);

}  // namespace outrider::ops::cpu
