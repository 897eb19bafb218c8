// Can two processes share memory of one device (CUDA IPC), and how fast do they hear each other?
// First with the host in between (always safe), then two kernels, one in each process, that answer
// each other through a flag: without MPS the device gives the processes turns, so that a round trip
// is expected to cost time slices.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tools/gpu/probe/cuda_util.h"
#include "tools/gpu/probe/device_intrinsics.cuh"
#include "tools/gpu/probe/probes.h"
#include "tools/gpu/probe/process.h"

namespace outrider::gpu_probe {
namespace {

constexpr size_t kWords = 1024 * 1024;
constexpr size_t kFlagWords = 1024;  // behind them
constexpr unsigned kKernelRounds = 50;
constexpr int kHostRounds = 200;

__device__ __host__ unsigned pattern(size_t index, unsigned seed) {
  return (static_cast<unsigned>(index) * 2654435761u) ^ seed;
}

__global__ void write_pattern(unsigned* words, size_t count, unsigned seed) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    words[i] = pattern(i, seed);
  }
}

__global__ void count_wrong(const unsigned* words, size_t count, unsigned seed, unsigned* wrong) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    if (words[i] != pattern(i, seed)) {
      atomicAdd(wrong, 1u);
    }
  }
}

// flags[0] is written by the first process, flags[32] by the second. reached: rounds that were
// answered within two seconds; nanoseconds: how long they took after the first.
__global__ void answer_each_other(
    unsigned* flags, int me, unsigned rounds, unsigned* reached, uint64_t* nanoseconds) {
  unsigned* mine = flags + 32 * me;
  const unsigned* other = flags + 32 * (1 - me);
  const uint64_t end = device_nanoseconds() + 2000000000ULL;
  uint64_t first = 0;
  for (unsigned round = 1; round <= rounds; ++round) {
    if (me == 0) {
      store_release_system(mine, round);
    }
    while (load_acquire_system(other) < round) {
      if (device_nanoseconds() > end) {
        return;
      }
    }
    if (me == 1) {
      store_release_system(mine, round);
    }
    first = round == 1 ? device_nanoseconds() : first;
    *nanoseconds = device_nanoseconds() - first;
    *reached = round;
  }
}

// What goes through the pipes: one byte at a time but for the handle.
void tell(int file) {
  const char go = 1;
  if (!write_all(file, &go, 1)) {
    throw std::runtime_error("the other process is gone");
  }
}

void hear(int file) {
  char go = 0;
  if (!read_all(file, &go, 1)) {
    throw std::runtime_error("the other process ended early");
  }
}

unsigned wrong_words(const unsigned* words, unsigned seed) {
  const DeviceBuffer wrong(sizeof(unsigned));
  check(cudaMemset(wrong.as<void>(), 0, wrong.bytes()), "clearing a counter");
  count_wrong<<<64, 256>>>(words, kWords, seed, wrong.as<unsigned>());
  unsigned counted = ~0u;
  check(cudaMemcpy(&counted, wrong.as<void>(), sizeof(counted), cudaMemcpyDefault),
        "comparing shared memory");
  return counted;
}

struct Answered {
  unsigned rounds = 0;
  double us = 0;
};

Answered run_answering(unsigned* flags, int me) {
  const DeviceBuffer results(16);
  check(cudaMemset(results.as<void>(), 0, results.bytes()), "clearing results");
  auto* nanoseconds = results.as<uint64_t>();
  auto* reached = reinterpret_cast<unsigned*>(nanoseconds + 1);
  answer_each_other<<<1, 1>>>(flags, me, kKernelRounds, reached, nanoseconds);
  check(cudaDeviceSynchronize(), "two kernels that answer each other");
  uint64_t host[2] = {0, 0};
  check(cudaMemcpy(host, results.as<void>(), sizeof(host), cudaMemcpyDefault), "reading results");
  Answered answered;
  answered.rounds = static_cast<unsigned>(host[1]);
  answered.us =
      answered.rounds > 1 ? static_cast<double>(host[0]) / 1e3 / (answered.rounds - 1) : 0;
  return answered;
}

// The turns both processes take; `me` 0 reports.
void exchange(const ProbeOptions& options, unsigned* words, int me, Report* report) {
  const auto fill = [&](unsigned seed) {
    write_pattern<<<64, 256>>>(words, kWords, seed);
    check(cudaDeviceSynchronize(), "writing shared memory");
  };
  const auto expect = [&](unsigned seed) {
    if (wrong_words(words, seed) != 0) {
      throw std::runtime_error("shared memory does not hold what the other process wrote");
    }
  };
  if (me == 0) {
    fill(11);
    tell(options.write_file);
    hear(options.read_file);
    expect(22);
    report->note(
        "two processes on one device share memory over CUDA IPC: yes, 4 MiB compared both ways");
    report->save("running");
  } else {
    hear(options.read_file);
    expect(11);
    fill(22);
    tell(options.write_file);
  }
  const double start = monotonic_seconds();
  for (int round = 0; round < kHostRounds; ++round) {
    if (me == 1) {
      hear(options.read_file);
    }
    write_pattern<<<1, 32>>>(words, 32, static_cast<unsigned>(round));
    check(cudaDeviceSynchronize(), "taking turns");
    tell(options.write_file);
    if (me == 0) {
      hear(options.read_file);
    }
  }
  if (me == 0) {
    report->value("turns_over_pipes_us", 1e6 * (monotonic_seconds() - start) / kHostRounds);
    report->save("running");
  }
  // Both start their kernels at about the same time.
  tell(options.write_file);
  hear(options.read_file);
  const Answered answered = run_answering(words + kWords, me);
  if (me == 0) {
    report->note("two running kernels of two processes that answer each other: " +
                 std::to_string(answered.rounds) + " of " + std::to_string(kKernelRounds) +
                 " rounds within 2 s");
    if (answered.rounds > 1) {
      report->value("flag_round_trip_us", answered.us);
    }
    hear(options.read_file);  // the other one has closed its handle
  }
}

}  // namespace

void probe_ipc(const ProbeOptions& options, Report& report) {
  int to_peer[2];
  int from_peer[2];
  if (pipe(to_peer) != 0 || pipe(from_peer) != 0) {
    throw std::runtime_error("no pipes");
  }
  // The other process is started before this one touches the driver, and without this one's ends of
  // the pipes, so that each sees the other end.
  fcntl(to_peer[1], F_SETFD, FD_CLOEXEC);
  fcntl(from_peer[0], F_SETFD, FD_CLOEXEC);
  const std::string log = options.folder + "/ipc_peer.log";
  const pid_t peer = start_self({"--peer",
                                 "ipc",
                                 "--read",
                                 std::to_string(to_peer[0]),
                                 "--write",
                                 std::to_string(from_peer[1]),
                                 "--out",
                                 options.folder},
                                {{}, log, false});
  close(to_peer[0]);
  close(from_peer[1]);
  ProbeOptions mine = options;
  mine.read_file = from_peer[0];
  mine.write_file = to_peer[1];
  std::string problem;
  try {
    const DeviceBuffer words((kWords + kFlagWords) * sizeof(unsigned));
    check(cudaMemset(words.as<void>(), 0, words.bytes()), "clearing memory");
    check(cudaDeviceSynchronize(), "clearing memory");
    cudaIpcMemHandle_t handle;
    check(cudaIpcGetMemHandle(&handle, words.as<void>()), "making an IPC handle");
    if (!write_all(mine.write_file, &handle, sizeof(handle))) {
      throw std::runtime_error("the other process is gone");
    }
    exchange(mine, words.as<unsigned>(), 0, &report);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  close(mine.write_file);
  close(mine.read_file);
  const Ended ended = wait_for(peer, 5, false);
  if (!problem.empty() || ended.code != 0) {
    throw std::runtime_error((problem.empty() ? "the second process failed" : problem) +
                             "; the second process said: " + last_lines(log, 3));
  }
}

int ipc_peer(const ProbeOptions& options) {
  cudaIpcMemHandle_t handle;
  if (!read_all(options.read_file, &handle, sizeof(handle))) {
    return 1;
  }
  void* words = nullptr;
  check(cudaIpcOpenMemHandle(&words, handle, cudaIpcMemLazyEnablePeerAccess),
        "opening an IPC handle");
  exchange(options, static_cast<unsigned*>(words), 1, nullptr);
  check(cudaIpcCloseMemHandle(words), "closing an IPC handle");
  tell(options.write_file);
  return 0;
}

}  // namespace outrider::gpu_probe
