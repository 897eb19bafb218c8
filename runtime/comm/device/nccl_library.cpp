// See nccl_library.h. The only file that includes nccl.h, and only where the build found it.
#include "runtime/comm/device/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/waiting.h"

#if defined(OUTRIDER_NCCL)
#include <nccl.h>
#endif

namespace outrider {
namespace {

// NCCL's order of a sum depends on algorithm, protocol, channels and multicast: pinned, so that the
// same job gives the same bits tomorrow. (docs/gpu.md)
constexpr std::pair<const char*, const char*> kSettings[] = {
    {"NCCL_ALGO", "allreduce:tree"},
    {"NCCL_PROTO", "Simple"},
    {"NCCL_MIN_NCHANNELS", "1"},
    {"NCCL_MAX_NCHANNELS", "1"},
    {"NCCL_NVLS_ENABLE", "0"},
    {"NCCL_GRAPH_MIXING_SUPPORT", "0"},
};

}  // namespace

void pin_nccl_settings() {
  for (const auto& [name, value] : kSettings) setenv(name, value, 0);
}

std::string nccl_settings() {
  std::string text;
  for (const auto& [name, value] : kSettings) {
    const char* const found = std::getenv(name);
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, found != nullptr ? found : value);
  }
  return text;
}

#if defined(OUTRIDER_NCCL)

namespace {

constexpr int kOldestVersion = NCCL_VERSION(2, 28, 0);
static_assert(NCCL_VERSION_CODE >= kOldestVersion, "nccl.h is older than what is asked for");

std::string version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

ncclComm_t native(void* comm) { return static_cast<ncclComm_t>(comm); }

}  // namespace

struct NcclFunctions {
  int version = 0;
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
};

namespace {

template <typename Function>
void find(void* library, const std::string& path, const char* name, Function* to) {
  *to = reinterpret_cast<Function>(dlsym(library, name));
  if (*to == nullptr) throw Error(fmt::format("NCCL at {} has no {}", path, name));
}

}  // namespace

NcclLibrary::NcclLibrary(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(fmt::format("NCCL could not be loaded (OUTRIDER_NCCL names the file to take): {}",
                            dlerror()));
  }
  auto found = std::make_shared<NcclFunctions>();
  find(library, path, "ncclGetVersion", &found->get_version);
  if (found->get_version(&found->version) != ncclSuccess || found->version < kOldestVersion) {
    throw Error(fmt::format("NCCL {} at {} is too old: {} or newer is needed",
                            version_text(found->version),
                            path,
                            version_text(kOldestVersion)));
  }
  find(library, path, "ncclGetUniqueId", &found->get_unique_id);
  find(library, path, "ncclCommInitRankConfig", &found->comm_init);
  find(library, path, "ncclCommGetAsyncError", &found->comm_get_async_error);
  find(library, path, "ncclCommAbort", &found->comm_abort);
  find(library, path, "ncclCommFinalize", &found->comm_finalize);
  find(library, path, "ncclCommDestroy", &found->comm_destroy);
  find(library, path, "ncclAllReduce", &found->all_reduce);
  find(library, path, "ncclAllGather", &found->all_gather);
  find(library, path, "ncclGetErrorString", &found->get_error_string);
  find(library, path, "ncclGetLastError", &found->get_last_error);
  functions_ = std::move(found);
}

const NcclLibrary& NcclLibrary::load(const std::string& path) {
  const char* const named = std::getenv("OUTRIDER_NCCL");
  const std::string file = !path.empty() ? path : named != nullptr ? named : "libnccl.so.2";
  static std::mutex mutex;
  static std::map<std::string, NcclLibrary> loaded;
  const std::lock_guard lock(mutex);
  if (const auto at = loaded.find(file); at != loaded.end()) return at->second;
  return loaded.emplace(file, NcclLibrary(file)).first->second;
}

std::string NcclLibrary::version() const { return version_text(functions_->version); }

NcclId NcclLibrary::make_id() const {
  ncclUniqueId id = {};
  const ncclResult_t result = functions_->get_unique_id(&id);
  if (result != ncclSuccess) {
    throw Error(fmt::format("NCCL could not begin: {}", functions_->get_last_error(nullptr)));
  }
  NcclId bytes;
  static_assert(sizeof id == sizeof bytes);
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

NcclComm::NcclComm(
    const NcclLibrary& library, const NcclId& id, int rank, int size, const Limits& limits)
    : functions_(library.functions()), limits_(limits) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // a member that is gone must not keep this thread
  config.minCTAs = 1;
  config.maxCTAs = 1;
  ncclUniqueId native_id = {};
  std::memcpy(&native_id, id.data(), sizeof native_id);
  ncclComm_t comm = nullptr;
  const ncclResult_t result = functions_.comm_init(&comm, size, native_id, rank, &config);
  comm_ = comm;
  try {
    settle(result, "meeting the other ranks");
  } catch (...) {
    abort();
    throw;
  }
}

// Orderly, since what this member sent last may still be on its way to the others.
NcclComm::~NcclComm() {
  if (comm_ == nullptr) return;
  try {
    settle(functions_.comm_finalize(native(comm_)), "the end");
    functions_.comm_destroy(native(comm_));
  } catch (const Error&) {
    abort();
  }
}

void NcclComm::all_reduce_sum(float* values, size_t count, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  settle(functions_.all_reduce(values, values, count, ncclFloat32, ncclSum, native(usable()), on),
         "a sum");
}

void NcclComm::all_gather(const float* mine, float* all, size_t count, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  settle(functions_.all_gather(mine, all, count, ncclFloat32, native(usable()), on), "a gather");
}

std::string NcclComm::error() const {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return {};
  ncclResult_t result = ncclSuccess;
  functions_.comm_get_async_error(native(comm_), &result);
  return result == ncclSuccess || result == ncclInProgress ? std::string() : text_of(result);
}

// On a thread of its own: the call lasts until no recorded graph has the communicator in it any
// more (commDestroySync of NCCL 2.28), and graphs go when those have ended who wait for this one.
void NcclComm::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  std::thread([end = functions_.comm_abort, comm = native(comm_)] { end(comm); }).detach();
  comm_ = nullptr;
}

void* NcclComm::usable() const {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) throw Error("NCCL was ended before");
  return comm_;
}

void NcclComm::settle(int result, const char* what) {
  const auto begin = std::chrono::steady_clock::now();
  Backoff backoff;
  while (result == ncclInProgress) {
    if (std::chrono::steady_clock::now() - begin > limits_.most) {
      throw Error(fmt::format("NCCL: {} did not get done within {} s", what, limits_.most.count()));
    }
    if (limits_.check_alive && backoff.should_check()) limits_.check_alive();
    backoff.pause();
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw Error(fmt::format("NCCL: {} was ended", what));
    ncclResult_t now = ncclSuccess;
    functions_.comm_get_async_error(native(comm_), &now);
    result = now;
  }
  if (result != ncclSuccess) throw Error(fmt::format("NCCL: {}: {}", what, text_of(result)));
}

std::string NcclComm::text_of(int result) const {
  const std::string last = functions_.get_last_error(nullptr);
  const std::string kind = functions_.get_error_string(static_cast<ncclResult_t>(result));
  return last.empty() ? kind : fmt::format("{} ({})", kind, last);
}

#else  // a build without nccl.h

struct NcclFunctions {};

const NcclLibrary& NcclLibrary::load(const std::string&) {
  throw Error("this build has no NCCL: build it where nccl.h and nvcc are");
}
std::string NcclLibrary::version() const { return {}; }
NcclId NcclLibrary::make_id() const { return {}; }
NcclComm::NcclComm(const NcclLibrary& library, const NcclId&, int, int, const Limits& limits)
    : functions_(library.functions()), limits_(limits) {}
NcclComm::~NcclComm() = default;
void NcclComm::all_reduce_sum(float*, size_t, void*) {}
void NcclComm::all_gather(const float*, float*, size_t, void*) {}
std::string NcclComm::error() const { return {}; }
void NcclComm::abort() noexcept {}

#endif

}  // namespace outrider
