// See fingerprint.h.
#include "models/checkpoint/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "models/checkpoint/safetensors.h"
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

void add_tensor(const SafetensorsFile& file, const TensorInfo& tensor, Fingerprint* fingerprint) {
  fingerprint->add(tensor.type_name);
  for (const int64_t length : tensor.shape) fingerprint->add(static_cast<uint64_t>(length));
  fingerprint->add(tensor.begin);
  const uint64_t num_bytes = tensor.end - tensor.begin;
  std::vector<char> piece(std::min<uint64_t>(kPieceBytes, num_bytes));
  const uint64_t last = num_bytes - piece.size();
  for (const uint64_t at : {uint64_t{0}, last / 2, last}) {
    file.read(tensor, at, piece.data(), piece.size());
    fingerprint->add(piece);
  }
}

}  // namespace

std::string fingerprint_of_text(std::string_view text) {
  Fingerprint fingerprint;
  fingerprint.add(text);
  return fingerprint.text();
}

std::string fingerprint_of_file(const std::filesystem::path& file) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  Fingerprint fingerprint;
  fingerprint.add(read_regular_file(file, kMaxBytes));
  return fingerprint.text();
}

std::string fingerprint_of_weights(const std::filesystem::path& model_dir) {
  const Checkpoint checkpoint(model_dir);
  Fingerprint fingerprint;
  for (const auto& [file_name, file] : checkpoint.files()) {
    fingerprint.add(file_name);
    for (const auto& [name, tensor] : file.tensors()) {
      fingerprint.add(name);
      add_tensor(file, tensor, &fingerprint);
    }
  }
  return fingerprint.text();
}

}  // namespace outrider
