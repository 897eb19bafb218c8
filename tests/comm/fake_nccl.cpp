// A library with NCCL's functions for the tests of nccl_group.h: members are threads or processes
// of one host, memory is the emulated device's. A call is in progress until all members have made
// it, and then it sums, or it does what FAKE_NCCL says (read at each call, by the members that
// FAKE_NCCL_RANKS names, all when it is not set):
//   old, new     is version 2.27.5, 2.29.1 (else 2.28.9)
//   no_id        gives no unique id
//   no_peers     never finishes to meet the others
//   lost         as silent, and the communicator reports an error a moment after that sum was
//   queued silent       its second sum is queued and never done: the stream's wait ends by an abort
//   alone,
//                whose call lasts for ever
//   unqueued     its second sum is never queued
//   slow         every call is "in progress" for a moment, then done
#include "tests/comm/fake_nccl.h"

#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kMoment{3};
constexpr int kMostMembers = 16;
constexpr size_t kMostFloats = size_t{1} << 20;

// What the members share, in a file without a name; zeros at first. Nobody writes a part of round
// s + 2 before all have done round s: the parts of two rounds are enough.
struct Meeting {
  std::atomic<int32_t> num_joined;
  std::atomic<int32_t> num_aborted;
  std::atomic<uint64_t> rounds_begun[kMostMembers];
  float parts[2][kMostMembers][kMostFloats];
};

// In the unique id: where the file is to be had.
struct Place {
  int32_t process = 0;
  int32_t file = 0;
  uint64_t drawn = 0;  // two ids are never the same
};

Meeting* map_meeting(int file) {
  void* const memory =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Meeting*>(memory);
}

}  // namespace

struct ncclComm {
  Meeting* meeting = nullptr;
  int rank = 0;
  int size = 0;
  uint64_t num_rounds = 0;  // done
  // Of the call in progress, if `receive` is not null.
  float* receive = nullptr;
  size_t count = 0;
  bool gathers = false;
  int num_sums = 0;
  Clock::time_point busy_until;  // "slow"
  Clock::time_point lost_at = Clock::time_point::max();
  bool is_stuck = false;                           // in progress for ever
  std::vector<outrider::test::FakeQueue*> silent;  // streams whose wait hangs
};

namespace {

bool told_to(const char* what, int rank) {
  const char* const mode = std::getenv("FAKE_NCCL");
  const char* const ranks = std::getenv("FAKE_NCCL_RANKS");
  if (mode == nullptr || std::strcmp(mode, what) != 0) return false;
  return ranks == nullptr || std::strchr(ranks, '0' + rank) != nullptr;
}

ncclResult_t begin_call(ncclComm_t comm) {
  if (told_to("slow", comm->rank)) {
    comm->busy_until = Clock::now() + kMoment;
    return ncclInProgress;
  }
  return ncclSuccess;
}

ncclResult_t begin_round(
    ncclComm_t comm, const void* send, void* receive, size_t count, bool gathers) {
  if (count > kMostFloats || comm->receive != nullptr) return ncclInvalidArgument;
  float* const part = comm->meeting->parts[comm->num_rounds % 2][comm->rank];
  std::memcpy(part, send, count * sizeof(float));
  comm->receive = static_cast<float*>(receive);
  comm->count = count;
  comm->gathers = gathers;
  comm->meeting->rounds_begun[comm->rank].store(comm->num_rounds + 1);
  return ncclInProgress;
}

// Of the call in progress.
ncclResult_t go_on(ncclComm_t comm) {
  if (comm->receive == nullptr) return ncclSuccess;
  for (int r = 0; r < comm->size; ++r) {
    if (comm->meeting->rounds_begun[r].load() > comm->num_rounds) continue;
    return comm->meeting->num_aborted.load() > 0 ? ncclRemoteError : ncclInProgress;
  }
  float* const to = comm->receive;
  const auto& parts = comm->meeting->parts[comm->num_rounds % 2];
  for (int r = 0; r < comm->size; ++r) {
    if (comm->gathers || r == 0) {
      std::memcpy(to + static_cast<size_t>(r) * comm->count, parts[r], comm->count * sizeof(float));
    } else {
      for (size_t i = 0; i < comm->count; ++i) to[i] += parts[r][i];
    }
  }
  comm->receive = nullptr;
  ++comm->num_rounds;
  return begin_call(comm);
}

// True when the call is not to be done.
bool fails_to_sum(ncclComm_t comm, cudaStream_t stream, ncclResult_t* result) {
  *result = ncclSuccess;
  if (++comm->num_sums < 2) return false;
  if (told_to("unqueued", comm->rank)) {
    comm->is_stuck = true;
    *result = ncclInProgress;
    return true;
  }
  if (told_to("lost", comm->rank)) comm->lost_at = Clock::now() + kMoment;
  if (told_to("silent", comm->rank) || told_to("lost", comm->rank)) {
    auto* const queue = reinterpret_cast<outrider::test::FakeQueue*>(stream);
    queue->is_stuck = true;
    comm->silent.push_back(queue);
    return true;
  }
  return false;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = told_to("old", 0)   ? NCCL_VERSION(2, 27, 5)
             : told_to("new", 0) ? NCCL_VERSION(2, 29, 1)
                                 : NCCL_VERSION(2, 28, 9);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (told_to("no_id", 0)) return ncclSystemError;
  // Open as long as this process lives, for whoever comes.
  const int file = memfd_create("fake-nccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Meeting)) != 0) return ncclSystemError;
  const Place place = {.process = getpid(), .file = file, .drawn = std::random_device()()};
  static_assert(sizeof place <= sizeof id->internal);
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, &place, sizeof place);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId unique, int rank, ncclConfig_t* config) {
  if (config->blocking != 0 || size > kMostMembers) return ncclInvalidArgument;
  Place place;
  std::memcpy(&place, unique.internal, sizeof place);
  const std::string path =
      "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return ncclSystemError;
  Meeting* const meeting = map_meeting(file);
  close(file);
  if (meeting == nullptr) return ncclSystemError;
  ++meeting->num_joined;
  *comm = new ncclComm{.meeting = meeting, .rank = rank, .size = size};
  (*comm)->is_stuck = told_to("no_peers", rank);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = go_on(comm);
  if (comm->is_stuck || comm->meeting->num_joined.load() < comm->size) *result = ncclInProgress;
  if (Clock::now() < comm->busy_until) *result = ncclInProgress;
  if (Clock::now() > comm->lost_at) *result = ncclRemoteError;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->meeting, sizeof(Meeting));
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ++comm->meeting->num_aborted;
  for (auto* const queue : comm->silent) queue->is_stuck = false;
  // As NCCL's, until graphs that have the communicator in them are destroyed: here never.
  while (!comm->silent.empty()) pause();
  return ncclCommDestroy(comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return begin_call(comm); }

ncclResult_t ncclAllReduce(const void* send,
                           void* receive,
                           size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t op,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
  ncclResult_t result = ncclSuccess;
  if (fails_to_sum(comm, stream, &result)) return result;
  return begin_round(comm, send, receive, count, false);
}

ncclResult_t ncclAllGather(const void* send,
                           void* receive,
                           size_t count,
                           ncclDataType_t type,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  ncclResult_t result = ncclSuccess;
  if (fails_to_sum(comm, stream, &result)) return result;
  return begin_round(comm, send, receive, count, true);
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "another error";
}
const char* ncclGetLastError(ncclComm_t) { return "what the fake says"; }

}  // extern "C"
