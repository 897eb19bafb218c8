// Reads GGUF, the one-file form in which llama.cpp keeps models: metadata by key, then tensors. A
// model may be split over several files (NAME-00001-of-00003.gguf), of which the first has the
// metadata. Nothing in a file is trusted: every count and offset is checked against the file's size
// before memory is taken. Immutable after opening, so several threads may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "models/gguf/gguf_blocks.h"
#include "runtime/base/files/files.h"

namespace outrider {

// Whether a model's name means a GGUF file: by its ending.
bool is_gguf(const std::filesystem::path& model);

// Whole numbers, floats, flags and texts, or arrays of them (flags as numbers).
using GgufValue = std::variant<bool,
                               int64_t,
                               double,
                               std::string,
                               std::vector<double>,
                               std::vector<std::string>>;

struct GgufTensor {
  const ReadOnlyFile* file = nullptr;
  const GgufType* type = nullptr;
  std::vector<int64_t> shape;  // outermost first, as Hugging Face has it
  uint64_t begin = 0;          // byte offset in the file
  uint64_t num_bytes = 0;
};

class GgufFile {
 public:
  // Opens the file and, of a split model, the others. Throws Error naming the file, the key or the
  // tensor and what is wrong.
  explicit GgufFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  // nullptr where there is none, or of another kind: throws Error for that.
  template <typename T>
  const T* find(const std::string& key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return nullptr;
    const T* value = std::get_if<T>(&found->second);
    if (value == nullptr) fail_kind(key);
    return value;
  }
  // Throws Error when a file is not the one that was opened any more.
  void check_unchanged() const;

 private:
  [[noreturn]] void fail_kind(const std::string& key) const;
  void open_part(const std::filesystem::path& path);

  std::string name_;
  std::vector<std::unique_ptr<ReadOnlyFile>> files_;
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace outrider
