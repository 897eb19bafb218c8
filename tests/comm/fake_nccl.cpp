// A library with NCCL's functions for the tests of nccl_group.h: members are threads of one
// process, memory is the emulated device's. It sums when all members have called, or does what
// FAKE_NCCL says (read at each call, by the members that FAKE_NCCL_RANKS names, all when it is not
// set):
//   old          is version 2.27.5
//   no_id        gives no unique id
//   no_peers     never finishes to meet the others
//   lost         the communicator reports an error a moment after its second sum was queued
//   silent       its second sum is queued and never done (the stream's wait ends by an abort alone)
//   unqueued     its second sum is never queued
//   slow         every call is "in progress" for a moment, then done
#include "tests/comm/fake_nccl.h"

#include <nccl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Id = std::array<char, NCCL_UNIQUE_ID_BYTES>;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kMoment{3};

// What the members share.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int num_joined = 0;
  int num_here = 0;
  uint64_t round = 0;
  int num_aborted = 0;
  std::vector<std::vector<float>> parts;
  std::vector<std::vector<float>> done;  // of the latest round that all have come to
};

std::mutex registry_mutex;
std::map<Id, std::shared_ptr<Meeting>> registry;

}  // namespace

struct ncclComm {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
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

// All members' parts, when all have come; empty after an abort.
std::vector<std::vector<float>> meet(ncclComm_t comm, const float* mine, size_t count) {
  Meeting& meeting = *comm->meeting;
  std::unique_lock lock(meeting.mutex);
  const uint64_t round = meeting.round;
  if (meeting.num_here == 0) meeting.parts.assign(static_cast<size_t>(meeting.size), {});
  meeting.parts[static_cast<size_t>(comm->rank)].assign(mine, mine + count);
  if (++meeting.num_here == meeting.size) {
    meeting.num_here = 0;
    ++meeting.round;
    meeting.done = std::move(meeting.parts);
    meeting.changed.notify_all();
    return meeting.done;
  }
  meeting.changed.wait(lock, [&] { return meeting.round != round || meeting.num_aborted > 0; });
  return meeting.round != round ? meeting.done : std::vector<std::vector<float>>();
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
  *version = told_to("old", 0) ? NCCL_VERSION(2, 27, 5) : NCCL_VERSION(2, 28, 9);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (told_to("no_id", 0)) return ncclSystemError;
  std::random_device random;
  for (char& byte : id->internal) byte = static_cast<char>(random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId unique, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  Id id;
  std::memcpy(id.data(), unique.internal, id.size());
  const std::lock_guard lock(registry_mutex);
  std::shared_ptr<Meeting>& meeting = registry[id];
  if (meeting == nullptr) meeting = std::make_shared<Meeting>();
  meeting->size = size;
  ++meeting->num_joined;
  *comm = new ncclComm{.meeting = meeting, .rank = rank};
  (*comm)->is_stuck = told_to("no_peers", rank);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(comm->meeting->mutex);
  *result = ncclSuccess;
  if (comm->is_stuck || comm->meeting->num_joined < comm->meeting->size) *result = ncclInProgress;
  if (Clock::now() < comm->busy_until) *result = ncclInProgress;
  if (Clock::now() > comm->lost_at) *result = ncclRemoteError;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->meeting->mutex);
    ++comm->meeting->num_aborted;
    comm->meeting->changed.notify_all();
    for (auto* const queue : comm->silent) queue->is_stuck = false;
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return begin_call(comm); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

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
  const auto parts = meet(comm, static_cast<const float*>(send), count);
  if (parts.empty()) return ncclRemoteError;
  auto* const sums = static_cast<float*>(receive);
  for (size_t i = 0; i < count; ++i) {
    sums[i] = parts[0][i];
    for (size_t r = 1; r < parts.size(); ++r) sums[i] += parts[r][i];
  }
  return begin_call(comm);
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
  const auto parts = meet(comm, static_cast<const float*>(send), count);
  if (parts.empty()) return ncclRemoteError;
  for (size_t r = 0; r < parts.size(); ++r) {
    std::memcpy(static_cast<float*>(receive) + r * count, parts[r].data(), count * sizeof(float));
  }
  return begin_call(comm);
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "another error";
}
const char* ncclGetLastError(ncclComm_t) { return "what the fake says"; }

}  // extern "C"
