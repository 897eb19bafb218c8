// A fuzz target is one function in a file of its own: it must return for every input and abort when
// a property does not hold. With clang it is driven by libFuzzer (preset fuzz, tools/fuzz.sh), in
// the test suite by driver.cpp.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

#define FUZZ_CHECK(condition)         \
  ((condition) ? static_cast<void>(0) \
               : (std::fprintf(stderr, "does not hold: %s\n", #condition), std::abort()))

namespace outrider::fuzz {

// The two good ends of a reader: it takes its input, or it throws Error with a sentence. Whatever
// else it throws ends the program.
template <typename Read>
bool takes(Read read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    FUZZ_CHECK(*error.what() != '\0');
    return false;
  }
}

// An input in parts: bytes that choose something first, then texts between marks.
class Input {
 public:
  Input(const uint8_t* data, size_t num_bytes)
      : rest_(reinterpret_cast<const char*>(data), num_bytes) {}

  bool empty() const { return rest_.empty(); }
  uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  // Up to the mark, which belongs to nobody.
  std::string text_until(char mark) {
    const std::string_view text = rest_.substr(0, rest_.find(mark));
    rest_.remove_prefix(std::min(rest_.size(), text.size() + 1));
    return std::string(text);
  }
  std::string_view rest() const { return rest_; }
  // What is left as numbers of two bytes each, below the limit.
  std::vector<int32_t> ids(int32_t limit) {
    std::vector<int32_t> ids;
    while (!empty()) {
      const int32_t high = byte();
      ids.push_back((high * 256 + byte()) % limit);
    }
    return ids;
  }

 private:
  std::string_view rest_;
};

// For readers of files: a folder of this process, in memory where there is one, gone at the end.
class Folder {
 public:
  explicit Folder(const std::string& name = "folder") {
    const bool in_memory = ::access("/dev/shm", W_OK) == 0;
    path_ = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    path_ /= "outrider-fuzz-" + std::to_string(::getpid()) + "-" + name;
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string write(const char* name, std::string_view bytes) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary) << bytes;
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace outrider::fuzz
