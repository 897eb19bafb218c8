// Which device this is: every figure of the other probes is for this one.
#include "tools/gpu/probe/cuda_util.h"
#include "tools/gpu/probe/probes.h"

namespace outrider::gpu_probe {

void probe_device(Report& report) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "asking for the device's properties");
  int driver = 0;
  int runtime = 0;
  int clock_khz = 0;
  int memory_clock_khz = 0;
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0), "asking for the clock");
  check(cudaDeviceGetAttribute(&memory_clock_khz, cudaDevAttrMemoryClockRate, 0),
        "asking for the memory's clock");
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for the free memory");

  Table& table = report.table("The device", {"what", "value"});
  const auto row = [&](const char* what, const std::string& value) {
    table.rows.push_back({what, value});
  };
  row("name", properties.name);
  row("compute capability",
      std::to_string(properties.major) + "." + std::to_string(properties.minor));
  row("multiprocessors", std::to_string(properties.multiProcessorCount));
  row("L2, MiB", number(static_cast<double>(properties.l2CacheSize) / (1 << 20)));
  row("shared memory a block may ask for, KiB",
      number(static_cast<double>(properties.sharedMemPerBlockOptin) / 1024));
  row("memory, MiB", std::to_string(total_bytes >> 20));
  row("free at the start, MiB", std::to_string(free_bytes >> 20));
  row("highest clock, MHz", std::to_string(clock_khz / 1000));
  row("memory clock, MHz", std::to_string(memory_clock_khz / 1000));
  row("memory bus, bits", std::to_string(properties.memoryBusWidth));
  row("CUDA the driver supports",
      std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10));
  row("CUDA runtime linked",
      std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10));
}

}  // namespace outrider::gpu_probe
