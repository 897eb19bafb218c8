// See backend.h. The only place that knows the shared object's name.
#include "runtime/ops/gpu/backend.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "runtime/base/error.h"

namespace outrider::gpu {
namespace {

constexpr const char* kLibrary = "liboutrider_cuda.so";

// A file that is there but cannot be loaded says more than one that is not there.
void* open_library(std::string* reason) {
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<std::filesystem::path> places = {folder / kLibrary, folder / ".." / "lib" / kLibrary};
  for (const auto& place : places) {
    if (!std::filesystem::exists(place, ignored)) continue;
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    *reason = dlerror();
    return nullptr;
  }
  if (void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) return library;
  *reason = dlerror();
  return nullptr;
}

const Backend* load() {
  std::string reason;
  void* library = open_library(&reason);
  if (library == nullptr) {
    throw Error("device 'cuda' needs " + std::string(kLibrary) +
                " (build with preset cuda); it could not be loaded: " + reason);
  }
  const auto function = reinterpret_cast<BackendFunction>(dlsym(library, kBackendSymbol));
  const Backend* backend = function == nullptr ? nullptr : function();
  if (backend == nullptr || backend->interface_version != kInterfaceVersion) {
    throw Error(std::string(kLibrary) + " is of another build of outrider; build both together");
  }
  if (backend->num_devices() == 0) throw Error("device 'cuda': there is no GPU on this machine");
  return backend;
}

}  // namespace

const Backend& cuda_backend() {
  static const Backend* const backend = load();  // an Error is thrown again by the next call
  return *backend;
}

}  // namespace outrider::gpu
