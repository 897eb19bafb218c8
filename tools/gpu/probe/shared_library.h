// Libraries that are loaded when they are asked for, so that the program starts where they are
// missing or lie in Python's folders. Host code only.
#pragma once

#include <string>

namespace outrider::gpu_probe {

// Looked for in this order: `asked` (a path; from an option), the environment variable, the
// system's own search, the wheels of every python3 in PATH (site-packages/nvidia/*/lib). Never
// unloaded.
class SharedLibrary {
 public:
  // file: such as "libnccl.so.2". Throws std::runtime_error naming all places when none has it.
  SharedLibrary(const std::string& file,
                const std::string& asked,
                const char* environment_variable);

  // Throws when the library lacks it.
  template <class Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

  // Which file a function came from.
  template <class Function>
  static std::string path_of_function(Function* function) {
    return path_of(reinterpret_cast<const void*>(function));
  }

 private:
  void* symbol(const char* name) const;
  static std::string path_of(const void* function);

  std::string file_;
  void* handle_ = nullptr;
};

}  // namespace outrider::gpu_probe
