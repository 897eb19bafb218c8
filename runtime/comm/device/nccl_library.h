// NCCL, found at run time: nothing links it, and only nccl_library.cpp includes its header.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace outrider {

using NcclId = std::array<std::byte, 128>;

struct NcclFunctions;  // of the library, by name

// The loaded library; one per path and process.
class NcclLibrary {
 public:
  // path empty: OUTRIDER_NCCL, else libnccl.so.2 where the linker looks. Throws Error with one
  // sentence: no such library, or older than 2.28.
  static const NcclLibrary& load(const std::string& path);

  std::string version() const;  // "2.28.9"
  NcclId make_id() const;       // on one member, for all
  const NcclFunctions& functions() const { return *functions_; }

 private:
  explicit NcclLibrary(const std::string& path);
  std::shared_ptr<const NcclFunctions> functions_;
};

// Puts the settings that make NCCL's sums the same from run to run into the environment, except
// what is set there already. Call it before any thread begins: setenv races with every getenv.
void pin_nccl_settings();
// What they are, "NAME=value"; for logs.
std::string nccl_settings();

// One member's communicator. Calls may be queued from one thread only; abort() may come from any.
class NcclComm {
 public:
  struct Limits {
    std::chrono::duration<double> most{0};  // of a call that does not get done
    std::function<void()> check_alive;      // called meanwhile; throws when the job is ending
  };
  // Together with all other members; on the calling thread's GPU. Throws Error.
  NcclComm(const NcclLibrary& library, const NcclId& id, int rank, int size, const Limits& limits);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  void limit_calls_to(std::chrono::duration<double> most) { limits_.most = most; }
  // Queued on `stream` (a cudaStream_t). Throw Error.
  void all_reduce_sum(float* values, size_t count, void* stream);
  void all_gather(const float* mine, float* all, size_t count, void* stream);

  // What went wrong since, or empty.
  std::string error() const;
  // Ends what is under way, on this member, a moment later; nothing may be queued any more.
  void abort() noexcept;

 private:
  // Until the call that gave `result` is queued.
  void settle(int result, const char* what);
  void* usable() const;
  std::string text_of(int result) const;

  const NcclFunctions& functions_;
  Limits limits_;
  mutable std::mutex mutex_;  // of comm_ against abort()
  void* comm_ = nullptr;
};

}  // namespace outrider
