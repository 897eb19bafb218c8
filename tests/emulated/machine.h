// A GPU's threads on one CPU thread: the blocks of a launch run one after the other, in an order
// drawn from a seed, or at once where they wait for other launches, each on an OS thread of its
// own. The threads of a block are fibers that take turns, in an order drawn from a seed too;
// warps that the seed chooses stand still until the others can go no further without them.
// So a missing sync_block() shows as a wrong result under some seed, and a warp operation or
// sync_block() that only some threads reach ends with an Error instead of hanging. Shared memory
// begins as NaN bytes. Asynchronous copies arrive at once or at the wait, whichever the seed says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/ops/gpu/launch_shape.h"

namespace outrider::gpu::emulated {

// Runs body once per thread. Throws Error when threads wait for each other for ever or the shape
// cannot be. Not reentrant; any number of OS threads may each run a launch of their own.
void run(const LaunchShape& shape, const std::function<void()>& body);

// The seed of orders and copies; run() changes it from launch to launch.
void set_seed(uint64_t seed);
// What the launch before has still to do when this OS thread's next one begins: done when a thread
// of that one first waits for it.
void set_predecessor(std::function<void()> work);

// What a warp does together: called by the last lane to arrive, with every lane's argument.
using WarpAction = void (*)(void* const (&lanes)[32]);

// The running thread's place.
struct Place {
  Grid block;
  Grid grid;
  uint32_t thread = 0;
  uint32_t num_threads = 0;
};
const Place& place();
std::byte* shared_bytes();

// Lets the other threads of the block run, and other OS threads: for waits for what those do.
void yield_thread();
// The running thread waits until all of its group of num_threads threads, counted from the block's
// first / the warp's 32 lanes have arrived.
void sync_group(uint32_t num_threads);
void wait_for_predecessor();
void warp_together(WarpAction action, void* lane_argument);

void copy_async_16(void* to, const void* from, bool valid);
void end_copy_group();
void wait_copies(int most_under_way);

}  // namespace outrider::gpu::emulated
