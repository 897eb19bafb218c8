// Two NCCL ranks on one device: NCCL refuses two ranks of one host on one device, and NCCL_HOSTID
// tells it that they are two hosts. They then talk over sockets on the loopback: good for testing
// the code, useless for speed. The library is loaded at run time and its few functions are declared
// here, so that building needs no NCCL.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/gpu/probe/cuda_util.h"
#include "tools/gpu/probe/probes.h"
#include "tools/gpu/probe/process.h"
#include "tools/gpu/probe/shared_library.h"

namespace outrider::gpu_probe {
namespace {

constexpr double kDeadlineS = 30;
constexpr int kBf16 = 9;  // ncclBfloat16
constexpr int kSum = 0;   // ncclSum

// As in nccl.h of NCCL 2; unchanged since 2.10.
struct UniqueId {
  char bytes[128];
};
struct Communicator;

struct Nccl {
  explicit Nccl(const std::string& asked) : library("libnccl.so.2", asked, "OUTRIDER_NCCL") {}
  SharedLibrary library;
  int (*version)(int*) = library.function<int(int*)>("ncclGetVersion");
  int (*unique_id)(UniqueId*) = library.function<int(UniqueId*)>("ncclGetUniqueId");
  int (*init)(Communicator**,
              int,
              UniqueId,
              int) = library.function<int(Communicator**, int, UniqueId, int)>("ncclCommInitRank");
  int (*all_reduce)(const void*, void*, size_t, int, int, Communicator*, cudaStream_t) =
      library.function<int(const void*, void*, size_t, int, int, Communicator*, cudaStream_t)>(
          "ncclAllReduce");
  const char* (*error_text)(int) = library.function<const char*(int)>("ncclGetErrorString");
  const char* (*last_error)(Communicator*) =
      library.function<const char*(Communicator*)>("ncclGetLastError");

  void check_nccl(int result, const char* what) const {
    if (result != 0) {
      throw std::runtime_error(std::string(what) + ": " + error_text(result) + " (" +
                               last_error(nullptr) + ")");
    }
  }
};

struct Timed {
  int bytes;
  double us;
};

// What rank 0 sends to the probe.
struct Answer {
  int version = 0;
  char path[512] = {};
  Timed timed[3] = {{16 * 1024, 0}, {80 * 1024, 0}, {272 * 1024, 0}};
};

uint16_t bf16_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);  // exact for the small whole numbers used here
}

// Small whole numbers whose sum over both ranks bf16 holds exactly.
float element(size_t index, int rank) {
  return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 3) % 61);
}

double time_all_reduce(const Nccl& nccl, Communicator* communicator, int rank, int bytes) {
  const Stream stream;
  const auto count = static_cast<size_t>(bytes) / 2;
  const DeviceBuffer input(static_cast<size_t>(bytes));
  const DeviceBuffer output(static_cast<size_t>(bytes));
  std::vector<uint16_t> host(count);
  for (size_t i = 0; i < count; ++i) {
    host[i] = bf16_of(element(i, rank));
  }
  check(cudaMemcpy(input.as<void>(), host.data(), input.bytes(), cudaMemcpyDefault),
        "copying an input");
  check(cudaMemset(output.as<void>(), 0xff, output.bytes()), "poisoning an output");
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    const double start = monotonic_seconds();
    nccl.check_nccl(
        nccl.all_reduce(
            input.as<void>(), output.as<void>(), count, kBf16, kSum, communicator, stream),
        "ncclAllReduce");
    check(cudaStreamSynchronize(stream), "an allreduce");
    times.push_back(1e6 * (monotonic_seconds() - start));
  }
  check(cudaMemcpy(host.data(), output.as<void>(), output.bytes(), cudaMemcpyDefault),
        "copying a result");
  for (size_t i = 0; i < count; ++i) {
    if (host[i] != bf16_of(element(i, 0) + element(i, 1))) {
      throw std::runtime_error("an allreduce of " + std::to_string(bytes) + " B gave a wrong sum");
    }
  }
  std::sort(times.begin() + 2, times.end());
  return times[7];
}

StartOptions rank_environment(int rank, bool same_gpu_option, const std::string& log) {
  const std::string number = std::to_string(rank);
  if (same_gpu_option) {
    return {{{"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
             {"NCCL_NVLS_ENABLE", "0"},
             {"NCCL_MAX_CTAS", "2"},
             {"NCCL_RAS_ENABLE", "0"},
             {"NCCL_SOCKET_IFNAME", "lo"},
             {"NCCL_DEBUG", "WARN"}},
            log,
            false};
  }
  return {{{"NCCL_HOSTID", "fake" + number},
           {"NCCL_SOCKET_IFNAME", "lo"},
           {"NCCL_NET", "Socket"},
           {"NCCL_IB_DISABLE", "1"},
           {"NCCL_MNNVL_ENABLE", "0"},
           {"NCCL_NVLS_ENABLE", "0"},
           {"NCCL_MAX_NCHANNELS", "1"},
           {"NCCL_ALGO", "Ring"},
           {"NCCL_PROTO", "Simple"},
           {"NCCL_RAS_ENABLE", "0"},
           {"NCCL_DEBUG", "WARN"}},
          log,
          false};
}

// Starts both ranks and waits. Empty: it worked, and `answer` is rank 0's.
std::string run_pair(const ProbeOptions& options, bool same_gpu_option, Answer& answer) {
  int id_pipe[2];
  int answer_pipe[2];
  if (pipe(id_pipe) != 0 || pipe(answer_pipe) != 0) {
    return "no pipes";
  }
  pid_t ranks[2];
  std::string logs[2];
  for (int rank = 0; rank < 2; ++rank) {
    logs[rank] = options.folder + "/nccl_rank" + std::to_string(rank) +
                 (same_gpu_option ? "_same_gpu.log" : ".log");
    std::vector<std::string> arguments{
        "--peer", "nccl", "--rank", std::to_string(rank), "--out", options.folder};
    if (rank == 0) {
      arguments.insert(
          arguments.end(),
          {"--write", std::to_string(id_pipe[1]), "--answer", std::to_string(answer_pipe[1])});
    } else {
      arguments.insert(arguments.end(), {"--read", std::to_string(id_pipe[0])});
    }
    if (!options.nccl_library.empty()) {
      arguments.insert(arguments.end(), {"--nccl", options.nccl_library});
    }
    ranks[rank] = start_self(arguments, rank_environment(rank, same_gpu_option, logs[rank]));
  }
  close(id_pipe[0]);
  close(id_pipe[1]);
  close(answer_pipe[1]);
  const double start = monotonic_seconds();
  const Ended first = wait_for(ranks[0], kDeadlineS, false);
  if (first.timed_out || first.code != 0) {
    kill(ranks[1], SIGKILL);
  }
  const Ended second =
      wait_for(ranks[1], std::max(1.0, kDeadlineS + 2 - (monotonic_seconds() - start)), false);
  const bool answered = read_all(answer_pipe[0], &answer, sizeof(answer));
  close(answer_pipe[0]);
  if (first.timed_out || second.timed_out) {
    return "no answer within " + number(kDeadlineS, 0) +
           " s; rank 0 said: " + last_lines(logs[0], 3);
  }
  if (first.code != 0 || second.code != 0 || !answered) {
    const int failed = first.code != 0 ? 0 : 1;
    return "rank " + std::to_string(failed) + " ended with " +
           std::to_string(failed == 0 ? first.code : second.code) +
           "; it said: " + last_lines(logs[failed], 3);
  }
  return "";
}

}  // namespace

void probe_nccl(const ProbeOptions& options, Report& report) {
  std::string first_problem;
  for (const bool same_gpu_option : {false, true}) {
    const char* way = same_gpu_option ? "NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 and newer)"
                                      : "a NCCL_HOSTID for each";
    Answer answer;
    const std::string problem = run_pair(options, same_gpu_option, answer);
    if (!problem.empty()) {
      report.note(std::string("two NCCL ranks on one device with ") + way + ": no; " + problem);
      first_problem = first_problem.empty() ? problem : first_problem;
      report.save("running");
      continue;
    }
    report.note(std::string("two NCCL ranks on one device with ") + way +
                ": yes, sums right; NCCL " + std::to_string(answer.version) + " from " +
                answer.path);
    Table& table = report.table(
        std::string("Allreduce of two ranks on one device, ") + way + ", medians of 10",
        {"KiB", "us"});
    for (const Timed& timed : answer.timed) {
      table.rows.push_back({std::to_string(timed.bytes / 1024), number(timed.us, 0)});
    }
    report.save("running");
    return;
  }
  throw std::runtime_error("two NCCL ranks on one device: no; " + first_problem);
}

int nccl_rank(const ProbeOptions& options) {
  const Nccl nccl(options.nccl_library);
  check(cudaSetDevice(0), "choosing the device");
  check(cudaFree(nullptr), "starting CUDA");
  UniqueId id{};
  Answer answer;
  nccl.check_nccl(nccl.version(&answer.version), "ncclGetVersion");
  const std::string path = SharedLibrary::path_of_function(nccl.version);
  std::snprintf(answer.path, sizeof(answer.path), "%s", path.c_str());
  std::printf("NCCL %d from %s\n", answer.version, path.c_str());
  std::fflush(stdout);
  if (options.rank == 0) {
    nccl.check_nccl(nccl.unique_id(&id), "ncclGetUniqueId");
    if (!write_all(options.write_file, &id, sizeof(id))) {
      throw std::runtime_error("rank 1 is gone");
    }
  } else if (!read_all(options.read_file, &id, sizeof(id))) {
    throw std::runtime_error("rank 0 ended early");
  }
  Communicator* communicator = nullptr;
  nccl.check_nccl(nccl.init(&communicator, 2, id, options.rank), "ncclCommInitRank");
  for (Timed& timed : answer.timed) {
    timed.us = time_all_reduce(nccl, communicator, options.rank, timed.bytes);
  }
  // The communicator is left to the end of the process: destroying it is one more exchange that may
  // hang.
  if (options.rank == 0 && !write_all(options.answer_file, &answer, sizeof(answer))) {
    return 1;
  }
  return 0;
}

}  // namespace outrider::gpu_probe
