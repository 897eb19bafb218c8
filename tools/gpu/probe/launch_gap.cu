// What does a kernel cost besides its work when it is a node of a graph? Chains of kernels that
// wait for a set number of clocks; gap = time per node - the waiting. With and without programmatic
// dependent launch. Every kernel adds one to a counter that its predecessor wrote, so a chain whose
// counter is wrong shows that the dependency did not hold.
#include <cstdint>
#include <stdexcept>
#include <string>

#include "tools/gpu/probe/cuda_util.h"
#include "tools/gpu/probe/device_intrinsics.cuh"
#include "tools/gpu/probe/probes.h"

namespace outrider::gpu_probe {
namespace {

__device__ void wait_clocks(long long clocks) {
  const long long start = clock64();
  while (clock64() - start < clocks) {
  }
}

// before: clocks waited before the predecessor's results are asked for (as a kernel that fetches
// its weights first), after: behind that. counters[0] in, counters[0] out.
__global__ void chain_kernel(unsigned* counter, long long before, long long after) {
  let_successor_start();
  wait_clocks(before);
  wait_for_predecessor();
  const unsigned seen = blockIdx.x == 0 ? *reinterpret_cast<volatile unsigned*>(counter) : 0;
  wait_clocks(after);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *reinterpret_cast<volatile unsigned*>(counter) = seen + 1;
  }
}

struct Chain {
  const char* name;
  double us;  // of waiting
  double share_before;
  int blocks;
  int threads;
};

constexpr int kNodes = 400;

double chain_us(const Chain& chain,
                double clocks_per_us,
                bool programmatic,
                unsigned* counter,
                const Stream& stream) {
  const auto before = static_cast<long long>(chain.us * chain.share_before * clocks_per_us);
  const auto after = static_cast<long long>(chain.us * (1 - chain.share_before) * clocks_per_us);
  const LaunchShape shape{chain.blocks, chain.threads, 0, programmatic};
  const int repeats = 20;
  check(cudaMemsetAsync(counter, 0, sizeof(unsigned), stream), "clearing a counter");
  const double us = us_per_node(stream, kNodes, repeats, [&](int) {
    launch(chain_kernel, shape, stream, counter, before, after);
  });
  unsigned counted = 0;
  check(cudaMemcpyAsync(&counted, counter, sizeof(counted), cudaMemcpyDefault, stream),
        "reading a counter");
  check(cudaStreamSynchronize(stream), chain.name);
  if (counted != kNodes * (repeats + 1)) {
    throw std::runtime_error(
        std::string(chain.name) + ": kernels of a chain ran before their predecessors had ended (" +
        std::to_string(counted) + " of " + std::to_string(kNodes * (repeats + 1)) + " counted)");
  }
  return us;
}

double without_graph_us(const Stream& stream, unsigned* counter, bool programmatic) {
  const LaunchShape shape{132, 128, 0, programmatic};
  return median_us(stream,
                   20,
                   [&] {
                     for (int i = 0; i < kNodes; ++i) {
                       launch(chain_kernel, shape, stream, counter, 0LL, 0LL);
                     }
                   }) /
         kNodes;
}

}  // namespace

void probe_launch_gap(Report& report) {
  const Stream stream;
  const DeviceBuffer counter(sizeof(unsigned));
  check(cudaMemset(counter.as<void>(), 0, counter.bytes()), "clearing a counter");
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "asking for the device's properties");
  const int sms = device.multiProcessorCount;

  // How long is a clock? Two long waits, so that what starting costs drops out.
  const auto long_wait = [&](long long clocks) {
    return median_us(stream, 9, [&] {
      launch(chain_kernel, {sms, 128, 0, false}, stream, counter.as<unsigned>(), 0LL, clocks);
    });
  };
  const double clocks_per_us = 2e6 / (long_wait(3000000) - long_wait(1000000));
  report.value("clock_mhz_while_waiting", clocks_per_us);

  const Chain chains[] = {
      {"nothing, 1 block of 32", 0, 0, 1, 32},
      {"nothing, a block of 128 per SM", 0, 0, sms, 128},
      {"nothing, a block of 1024 per SM", 0, 0, sms, 1024},
      {"2 us, a block of 256 per SM", 2, 0, sms, 256},
      {"2 us, half of it before the predecessor is needed", 2, 0.5, sms, 256},
      {"5 us, a block of 256 per SM", 5, 0, sms, 256},
      {"5 us, half of it before the predecessor is needed", 5, 0.5, sms, 256},
      {"5 us, 4 blocks of 256 per SM", 5, 0, 4 * sms, 256},
  };
  Table& table = report.table("Chains of " + std::to_string(kNodes) + " kernels in a graph, us",
                              {"each kernel waits",
                               "per node",
                               "gap",
                               "per node, dependent launch",
                               "gap, dependent launch"});
  for (const Chain& chain : chains) {
    const double plain = chain_us(chain, clocks_per_us, false, counter.as<unsigned>(), stream);
    const double dependent = chain_us(chain, clocks_per_us, true, counter.as<unsigned>(), stream);
    table.rows.push_back({chain.name,
                          number(plain, 2),
                          number(plain - chain.us, 2),
                          number(dependent, 2),
                          number(dependent - chain.us, 2)});
    report.save("running");
  }
  report.note("without a graph a kernel that does nothing costs " +
              number(without_graph_us(stream, counter.as<unsigned>(), false), 2) +
              " us in a stream, " +
              number(without_graph_us(stream, counter.as<unsigned>(), true), 2) +
              " us with dependent launch");
  report.note("a negative gap is work done before the predecessor had ended");
}

}  // namespace outrider::gpu_probe
