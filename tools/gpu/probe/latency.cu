// What does it cost to hear from the device? Starting and awaiting an empty graph, reading and
// writing host memory from kernels, small copies. Host clock around the whole exchange; medians.
#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/gpu/probe/cuda_util.h"
#include "tools/gpu/probe/device_intrinsics.cuh"
#include "tools/gpu/probe/probes.h"
#include "tools/gpu/probe/process.h"

namespace outrider::gpu_probe {
namespace {

__global__ void empty_kernel() {}

// Reads `words` words of mapped host memory and writes their sum to mapped host memory.
__global__ void sum_host_words(const unsigned* words, int count, unsigned* result) {
  unsigned mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    mine += *reinterpret_cast<const volatile unsigned*>(words + i);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    mine += __shfl_xor_sync(~0u, mine, lanes);
  }
  if (threadIdx.x == 0) {
    store_release_system(result, mine);
  }
}

// Answers every number the host writes, `rounds` times, or gives up after a second.
__global__ void answer_host(const unsigned* question, unsigned* answer, unsigned rounds) {
  const uint64_t end = device_nanoseconds() + 1000000000ULL;
  for (unsigned round = 1; round <= rounds; ++round) {
    while (load_acquire_system(question) < round) {
      if (device_nanoseconds() > end) {
        return;
      }
    }
    store_release_system(answer, round);
  }
}

struct HostMemory {
  HostMemory() {
    check(cudaHostAlloc(&words, 4096, cudaHostAllocMapped), "asking for mapped host memory");
    std::fill_n(words, 1024, 0u);
  }
  ~HostMemory() { cudaFreeHost(words); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  unsigned* words = nullptr;
};

double host_median_us(int repeats, const std::function<void()>& exchange) {
  std::vector<double> times;
  for (int i = 0; i < repeats + 10; ++i) {
    const double start = monotonic_seconds();
    exchange();
    if (i >= 10) {
      times.push_back(1e6 * (monotonic_seconds() - start));
    }
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

unsigned load_host(const unsigned* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

void wait_for_word(const unsigned* word, unsigned value, const char* what) {
  const double end = monotonic_seconds() + 1;
  while (load_host(word) != value) {
    if (monotonic_seconds() > end) {
      throw std::runtime_error(std::string(what) + ": no answer from the device within a second");
    }
  }
}

double round_trip_us(const Stream& stream) {
  const HostMemory question;
  const HostMemory answer;
  constexpr unsigned kRounds = 2000;
  answer_host<<<1, 1, 0, stream>>>(question.words, answer.words, kRounds);
  check(cudaGetLastError(), "starting a kernel that answers");
  double start = 0;
  for (unsigned round = 1; round <= kRounds; ++round) {
    if (round == 101) {
      start = monotonic_seconds();
    }
    __atomic_store_n(question.words, round, __ATOMIC_RELEASE);
    wait_for_word(answer.words, round, "round trip");
  }
  const double us = 1e6 * (monotonic_seconds() - start) / (kRounds - 100);
  check(cudaStreamSynchronize(stream), "ending a kernel that answers");
  return us;
}

}  // namespace

void probe_latency(const ProbeOptions&, Report& report) {
  const Stream stream;
  const HostMemory input;
  const HostMemory output;
  const DeviceBuffer device(4096);
  check(cudaMemset(device.as<void>(), 0, device.bytes()), "clearing memory");
  Table& table = report.table("Host clock, medians of 500", {"exchange", "us"});
  const auto row = [&](const char* what, const std::function<void()>& exchange) {
    table.rows.push_back({what, number(host_median_us(500, exchange), 2)});
  };
  const auto wait = [&] { check(cudaStreamSynchronize(stream), "waiting for the stream"); };

  const Graph empty(stream, [&] { launch(empty_kernel, {1, 32, 0, false}, stream); });
  row("empty kernel, stream synchronised", [&] {
    launch(empty_kernel, {1, 32, 0, false}, stream);
    wait();
  });
  row("graph of one empty kernel, stream synchronised", [&] {
    empty.launch(stream);
    wait();
  });
  row("graph launch alone, as the host sees it (not awaited)", [&] { empty.launch(stream); });
  wait();
  row("64 B from the device, asynchronous copy, stream synchronised", [&] {
    check(cudaMemcpyAsync(output.words, device.as<void>(), 64, cudaMemcpyDeviceToHost, stream),
          "copying 64 B");
    wait();
  });
  row("64 B to the device, asynchronous copy, stream synchronised", [&] {
    check(cudaMemcpyAsync(device.as<void>(), input.words, 64, cudaMemcpyHostToDevice, stream),
          "copying 64 B");
    wait();
  });

  unsigned turn = 0;
  for (const int words : {16, 256}) {
    const Graph reading(stream, [&] {
      launch(sum_host_words, {1, 32, 0, false}, stream, input.words, words, output.words);
    });
    const std::string bytes = std::to_string(words * 4) + " B of mapped host memory";
    const auto ask = [&] {
      ++turn;
      for (int i = 0; i < words; ++i) {
        input.words[i] = turn + static_cast<unsigned>(i);
      }
      reading.launch(stream);
      return static_cast<unsigned>(words) * turn + static_cast<unsigned>(words * (words - 1) / 2);
    };
    row(("graph whose kernel reads " + bytes + ", stream synchronised").c_str(), [&] {
      const unsigned expected = ask();
      wait();
      wait_for_word(output.words, expected, "reading mapped memory");
    });
    row("the same, the host watches mapped memory for the answer",
        [&] { wait_for_word(output.words, ask(), "reading mapped memory"); });
    wait();
  }
  table.rows.push_back({"round trip host, running kernel, host through mapped memory",
                        number(round_trip_us(stream), 2)});
}

}  // namespace outrider::gpu_probe
