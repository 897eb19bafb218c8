// From an instruction set's name to its kernels. Kept apart from kernels.h, which the ISA-specific
// files include.
#pragma once

#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/ops.h"

namespace outrider::ops::cpu {

// The table of an instruction set this CPU has (Context's constructor has checked that).
const KernelTable& kernels_of(Isa isa);

// How a context multiplies bf16 weights with rounded activations.
const RoundedProducts& rounded_products_of(const Context& ctx);

}  // namespace outrider::ops::cpu
