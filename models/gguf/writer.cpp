// See writer.h.
#include "models/gguf/writer.h"

#include <bit>
#include <cstring>

#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;

// Types of key-values.
constexpr uint32_t kUint32 = 4;
constexpr uint32_t kInt32 = 5;
constexpr uint32_t kFloat32 = 6;
constexpr uint32_t kBool = 7;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

template <typename T>
void put(std::string& out, T value) {
  char raw[sizeof(value)];
  std::memcpy(raw, &value, sizeof(value));
  out.append(raw, sizeof(raw));
}

void put_text(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out += text;
}

uint64_t aligned(uint64_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t elements_of(const GgufTensor& tensor) {
  int64_t all = 1;
  for (const int64_t size : tensor.shape) {
    OUTRIDER_CHECK(size > 0 && !__builtin_mul_overflow(all, size, &all));
  }
  return all;
}

}  // namespace

const char* gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return "f32";
    case GgufType::kF16:
      return "f16";
    case GgufType::kQ8_0:
      return "q8_0";
    case GgufType::kBF16:
      return "bf16";
  }
  return "";
}

uint64_t gguf_bytes(GgufType type, int64_t num_elements) {
  const auto n = static_cast<uint64_t>(num_elements);
  if (type == GgufType::kF32) return 4 * n;
  if (type != GgufType::kQ8_0) return 2 * n;
  OUTRIDER_CHECK(num_elements % kQ8BlockSize == 0);
  return n / kQ8BlockSize * (2 + kQ8BlockSize);
}

void GgufMetadata::begin(std::string_view key, uint32_t type) {
  put_text(bytes_, key);
  put(bytes_, type);
  ++size_;
}

void GgufMetadata::begin_array(std::string_view key, uint32_t type, size_t size) {
  begin(key, kArray);
  put(bytes_, type);
  put<uint64_t>(bytes_, size);
}

void GgufMetadata::add(std::string_view key, uint32_t value) {
  begin(key, kUint32);
  put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, float value) {
  begin(key, kFloat32);
  put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, bool value) {
  begin(key, kBool);
  put<uint8_t>(bytes_, value ? 1 : 0);
}

void GgufMetadata::add(std::string_view key, std::string_view text) {
  begin(key, kString);
  put_text(bytes_, text);
}

void GgufMetadata::add(std::string_view key, const std::vector<std::string>& texts) {
  begin_array(key, kString, texts.size());
  for (const std::string& text : texts) put_text(bytes_, text);
}

void GgufMetadata::add(std::string_view key, const std::vector<float>& values) {
  begin_array(key, kFloat32, values.size());
  for (const float value : values) put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, const std::vector<int32_t>& values) {
  begin_array(key, kInt32, values.size());
  for (const int32_t value : values) put(bytes_, value);
}

uint64_t GgufTensor::num_bytes() const { return gguf_bytes(type, elements_of(*this)); }

GgufWriter::GgufWriter(const std::filesystem::path& path,
                       const GgufMetadata& metadata,
                       const std::vector<GgufTensor>& tensors)
    : file_(path) {
  std::string header = "GGUF";
  put(header, kVersion);
  put<uint64_t>(header, tensors.size());
  put<uint64_t>(header, metadata.size());
  file_.append(header);
  file_.append(metadata.bytes());
  std::string infos;
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    put_text(infos, tensor.name);
    put(infos, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      put(infos, static_cast<uint64_t>(tensor.shape[i]));
    }
    put(infos, static_cast<uint32_t>(tensor.type));
    put(infos, offset);
    offset += aligned(tensor.num_bytes());
    pending_.push_back({tensor.name, tensor.num_bytes()});
  }
  file_.append(infos);
  pad();
}

void GgufWriter::pad() {
  const std::string zeros(aligned(file_.size_bytes()) - file_.size_bytes(), '\0');
  file_.append(zeros);
}

void GgufWriter::append(const std::string& tensor_name, std::span<const std::byte> bytes) {
  OUTRIDER_CHECK(!pending_.empty() && pending_.front().name == tensor_name);
  OUTRIDER_CHECK(bytes.size() <= pending_.front().num_bytes_left);
  file_.append(bytes.data(), bytes.size());
  pending_.front().num_bytes_left -= bytes.size();
  if (pending_.front().num_bytes_left > 0) return;
  pad();
  pending_.pop_front();
}

void GgufWriter::finish() {
  OUTRIDER_CHECK(pending_.empty());
  file_.finish();
}

}  // namespace outrider
