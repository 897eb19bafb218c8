// Writes GGUF files, version 3 (github.com/ggml-org/ggml, docs/gguf.md): key-values, then tensor
// names, then data on multiples of 32 bytes, as they come; nothing is in memory whole, and the file
// has its name only when it is complete. Used by gguf_export; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/new_file.h"

namespace outrider {

// ggml's numbers. Q8_0: blocks of 32 elements of a row, an f16 scale and 32 int8 each.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };
const char* gguf_type_name(GgufType type);
inline constexpr int64_t kQ8BlockSize = 32;
// Of num_elements in whole blocks.
uint64_t gguf_bytes(GgufType type, int64_t num_elements);

// The typed key-values of a file, in the order they were added.
class GgufMetadata {
 public:
  void add(std::string_view key, uint32_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, const char* text) { add(key, std::string_view(text)); }
  void add(std::string_view key, const std::vector<std::string>& texts);
  void add(std::string_view key, const std::vector<float>& values);
  void add(std::string_view key, const std::vector<int32_t>& values);

  uint64_t size() const { return size_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, uint32_t type);
  void begin_array(std::string_view key, uint32_t type, size_t size);
  std::string bytes_;
  uint64_t size_ = 0;
};

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // row-major, as in a checkpoint; the file has it reversed
  GgufType type = GgufType::kF32;

  uint64_t num_bytes() const;
};

class GgufWriter {
 public:
  GgufWriter(const std::filesystem::path& path,
             const GgufMetadata& metadata,
             const std::vector<GgufTensor>& tensors);

  // The next bytes of a tensor. Tensors come in the order given, each whole before the next.
  void append(const std::string& tensor_name, std::span<const std::byte> bytes);
  // Every byte must have come.
  void finish();

 private:
  struct Pending {
    std::string name;
    uint64_t num_bytes_left = 0;
  };
  void pad();

  NewFile file_;
  std::deque<Pending> pending_;
};

}  // namespace outrider
