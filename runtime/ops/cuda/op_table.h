// The ops by name, one file of kernels each; and the table that hands them out. Declared here, so
// that a missing one is a link error.
#pragma once

#include "runtime/ops/gpu/ops.h"

namespace outrider::gpu {

void embed(Stream& stream, const EmbedArgs& args);  // embed.cu
void norm(Stream& stream, const NormArgs& args);    // norm.cu

inline OpTable op_table() { return {.embed = embed, .norm = norm}; }

}  // namespace outrider::gpu
