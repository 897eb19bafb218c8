// Writes weights as safetensors: the header is planned from names, types and shapes, then the
// tensors' bytes follow in that order, in pieces of any size, so no tensor need be in memory whole.
// A file (or a folder's index) has its name only when it is complete. Used by `synth` and
// `quantize`; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/files/new_file.h"

namespace outrider {

struct PlannedTensor {
  std::string name;
  std::string type_name;  // as safetensors has it: "F32", "BF16", "F16", "I8", "I32", ...
  std::vector<int64_t> shape;

  uint64_t num_bytes() const;  // throws Error for an unknown type or an impossible size
};

class SafetensorsWriter {
 public:
  // Begins the file and writes its header. No name may be there twice. Where types are mixed, wider
  // ones first: readers that map the file want aligned elements.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<PlannedTensor>& tensors);

  // The next bytes of a tensor. Tensors come in the planned order, each whole before the next.
  void append(const std::string& tensor_name, std::span<const std::byte> bytes);

  bool is_full() const { return pending_.empty(); }
  // Every planned byte must have come.
  void finish();

 private:
  struct Pending {
    std::string name;
    uint64_t num_bytes_left = 0;
  };
  NewFile file_;
  std::deque<Pending> pending_;
};

// The weight files of a model folder as Hugging Face cuts them: model.safetensors, or beyond
// max_file_bytes model-00001-of-0000N.safetensors with model.safetensors.index.json.
class CheckpointWriter {
 public:
  static constexpr uint64_t kMaxFileBytes = 5'000'000'000;

  // The folder must exist. Throws Error when it has weight files already.
  CheckpointWriter(std::filesystem::path folder,
                   const std::vector<PlannedTensor>& tensors,
                   uint64_t max_file_bytes = kMaxFileBytes);

  // As of SafetensorsWriter.
  void append(const std::string& tensor_name, std::span<const std::byte> bytes);
  void finish();

  uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::string file_name(size_t part) const;
  std::string index_text() const;
  void turn_page();

  std::filesystem::path folder_;
  std::vector<std::vector<PlannedTensor>> parts_;  // by file
  size_t num_begun_ = 0;                           // files
  uint64_t total_bytes_ = 0;
  std::optional<SafetensorsWriter> writer_;
};

}  // namespace outrider
