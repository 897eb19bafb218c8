// The words kernels are written in. nvcc compiles them to the device; every other compiler to the
// emulated one, where a block's threads are fibers (tests/emulated/machine.h): so the same
// kernel source runs in the tests of a machine without GPU. A kernel is a function of one argument,
// a struct of plain values:
//
//   OUTRIDER_KERNEL(256) void add_one(AddOneArgs args) { ... thread_id() ... }
//   launch(stream, add_one, {.grid = {n, 1, 1}, .threads = 256}, args);
//
// Rules that keep both sides the same: all 32 lanes of a warp call a warp operation (shuffle, vote,
// matrix product, sync_warp) together, all threads of a block sync_block(); blocks are whole warps;
// blocks of a launch do not wait for each other. The device side is built with -fmad=false: a
// product is fused with a sum only where fused_multiply_add() says so, or two template instances
// could round differently.
#pragma once

#if defined(__CUDACC__)
#include "runtime/ops/cuda/platform_cuda.h"
#else
#include "tests/emulated/platform_emulated.h"
#endif
