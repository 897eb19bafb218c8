// dlopen with a search that knows Python's wheels.
#include "tools/gpu/probe/shared_library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace outrider::gpu_probe {
namespace {

// What python3 prints: a path per line, wheels of CUDA 13 first.
std::vector<std::string> in_python_wheels(const std::string& file) {
  const std::string script =
      "python3 -c \"import glob, site, sys\n"
      "folders = [p for p in sys.path + site.getsitepackages() if p]\n"
      "found = [f for p in folders for f in glob.glob(p + '/nvidia/*/lib/" +
      file +
      "')]\n"
      "print('\\n'.join(sorted(set(found), key=lambda f: ('cu13' not in f, f))))\" 2>/dev/null";
  std::vector<std::string> paths;
  std::FILE* pipe = popen(script.c_str(), "r");
  if (pipe == nullptr) {
    return paths;
  }
  char line[4096];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    std::string path(line);
    while (!path.empty() && path.back() == '\n') {
      path.pop_back();
    }
    if (!path.empty()) {
      paths.push_back(path);
    }
  }
  pclose(pipe);
  return paths;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::string& file,
                             const std::string& asked,
                             const char* environment_variable)
    : file_(file) {
  std::string tried;
  const auto open_path = [&](const std::string& path) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      tried += (tried.empty() ? "" : "; ") + std::string(dlerror());
    }
    return handle_ != nullptr;
  };
  const char* from_environment = std::getenv(environment_variable);
  if (!asked.empty()) {
    open_path(asked);
  } else if (from_environment != nullptr && *from_environment != '\0') {
    open_path(from_environment);
  } else if (!open_path(file)) {
    for (const std::string& path : in_python_wheels(file)) {
      if (open_path(path)) {
        break;
      }
    }
  }
  if (handle_ == nullptr) {
    throw std::runtime_error("no " + file + " found (" + tried + "); name it by " +
                             environment_variable);
  }
}

void* SharedLibrary::symbol(const char* name) const {
  void* address = dlsym(handle_, name);
  if (address == nullptr) {
    throw std::runtime_error(file_ + " has no " + name);
  }
  return address;
}

std::string SharedLibrary::path_of(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                   : "an unknown place";
}

}  // namespace outrider::gpu_probe
