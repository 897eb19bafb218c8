// Ranks of NCCL that are processes on one GPU, which it refuses unless told otherwise.
#pragma once

#include <cstdlib>
#include <string>

#include "tests/gpu/gpu_testing.h"

namespace outrider::test {

// kHostIds: each rank says that it is a host of its own; they then talk over sockets on the
// loopback, as ranks of several hosts do. kSharedGpu: NCCL 2.30 and newer. Which of them a machine
// allows is seen there (gpu_probe nccl); the fake library has no such rule.
enum class NcclWay { kHostIds, kSharedGpu };

// Before NCCL is loaded.
inline void set_nccl_way(NcclWay way, int rank) {
#ifdef FAKE_NCCL
  if (gpu::is_emulated()) setenv("OUTRIDER_NCCL", FAKE_NCCL, 1);
#endif
  if (way == NcclWay::kHostIds) {
    setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
    setenv("NCCL_NET", "Socket", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_MNNVL_ENABLE", "0", 1);
  } else {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  }
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_RAS_ENABLE", "0", 1);
  setenv("NCCL_DEBUG", "WARN", 1);
}

}  // namespace outrider::test
