// The probes of gpu_probe, one per file. Each fills its report and throws std::runtime_error with
// one sentence when it cannot go on; what it had measured by then stays in the report.
#pragma once

#include <string>

#include "tools/gpu/probe/report.h"

namespace outrider::gpu_probe {

struct ProbeOptions {
  std::string folder;            // where results go
  std::string nccl_library;      // empty: looked for
  std::string cublaslt_library;  // empty: looked for
  double read_ceiling_gb_s = 0;  // what the bandwidth probe found before; 0: not known
  // For the second processes that two of the probes start:
  int rank = 0;
  int read_file = -1;    // pipe from the other process
  int write_file = -1;   // pipe to it
  int answer_file = -1;  // pipe to the probe that started both
};

// Not a probe: the sentence of why_no_device(), for main.cpp, which includes nothing of CUDA.
std::string no_device_sentence();

void probe_device(const ProbeOptions& options, Report& report);
void probe_bandwidth(const ProbeOptions& options, Report& report);
void probe_cublaslt(const ProbeOptions& options, Report& report);
void probe_launch_gap(const ProbeOptions& options, Report& report);
void probe_latency(const ProbeOptions& options, Report& report);
void probe_ipc(const ProbeOptions& options, Report& report);
void probe_nccl(const ProbeOptions& options, Report& report);

// The other process of a pair. Exit code.
int ipc_peer(const ProbeOptions& options);
int nccl_rank(const ProbeOptions& options);

}  // namespace outrider::gpu_probe
