// See fingerprint.h.
#include "models/checkpoint/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/gguf/gguf_file.h"
#include "runtime/base/files/files.h"
#include "runtime/base/numbers/mix.h"

namespace outrider {
namespace {

constexpr size_t kPieceBytes = 2048;  // of a tensor, at three places

class Fingerprint {
 public:
  void add(uint64_t word) { state_ = mix64(state_ ^ word) + 0x9e3779b97f4a7c15ull; }
  void add(std::span<const char> bytes) {
    add(bytes.size());
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
      add(word);
    }
  }
  std::string text() const { return fmt::format("{:016x}", state_); }

 private:
  uint64_t state_ = 0;
};

// read(offset in the tensor, out, bytes).
template <typename Tensor, typename Read>
void add_tensor(const Tensor& tensor,
                std::string_view type,
                uint64_t num_bytes,
                const Read& read,
                Fingerprint* fingerprint) {
  fingerprint->add(type);
  for (const int64_t length : tensor.shape) fingerprint->add(static_cast<uint64_t>(length));
  fingerprint->add(tensor.begin);
  std::vector<char> piece(std::min<uint64_t>(kPieceBytes, num_bytes));
  const uint64_t last = num_bytes - piece.size();
  for (const uint64_t at : {uint64_t{0}, last / 2, last}) {
    read(at, piece.data(), piece.size());
    fingerprint->add(piece);
  }
}

}  // namespace

std::string fingerprint_of_text(std::string_view text) {
  Fingerprint fingerprint;
  fingerprint.add(text);
  return fingerprint.text();
}

std::string fingerprint_of_weights(const std::filesystem::path& model_dir) {
  Fingerprint fingerprint;
  if (is_gguf(model_dir)) {
    const GgufFile file(model_dir);
    for (const auto& [name, tensor] : file.tensors()) {
      fingerprint.add(name);
      const auto read = [&tensor = tensor](uint64_t at, char* out, size_t num_bytes) {
        tensor.file->read_at(tensor.begin + at, out, num_bytes);
      };
      add_tensor(tensor, tensor.type->name, tensor.num_bytes, read, &fingerprint);
    }
    return fingerprint.text();
  }
  const Checkpoint checkpoint(model_dir);
  for (const auto& [file_name, file] : checkpoint.files()) {
    fingerprint.add(file_name);
    for (const auto& [name, tensor] : file.tensors()) {
      fingerprint.add(name);
      const auto read = [&file = file, &tensor = tensor](uint64_t at, char* out, size_t num_bytes) {
        file.read(tensor, at, out, num_bytes);
      };
      add_tensor(tensor, tensor.type_name, tensor.end - tensor.begin, read, &fingerprint);
    }
  }
  return fingerprint.text();
}

}  // namespace outrider
