// The ops by name, and the table that hands them out. Declared here, so that a missing one is a
// link error.
#pragma once

#include "runtime/ops/gpu/exchange.h"
#include "runtime/ops/gpu/experts.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider::gpu {

#define OUTRIDER_DECLARE(name, ...) Op<__VA_ARGS__> name;
OUTRIDER_GPU_OPS(OUTRIDER_DECLARE)
#undef OUTRIDER_DECLARE

inline OpTable op_table() {
#define OUTRIDER_ENTRY(name, ...) .name = name,
  return {OUTRIDER_GPU_OPS(OUTRIDER_ENTRY)};
#undef OUTRIDER_ENTRY
}

}  // namespace outrider::gpu
