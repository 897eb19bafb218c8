// See gguf_file.h. The layout is ggml's docs/gguf.md: magic, version, counts, key-value pairs,
// tensor descriptions, then the tensors' data from the next multiple of general.alignment.
#include "models/gguf/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxEntries = 1 << 20;  // keys, tensors
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint32_t kMaxDimensions = 4;
constexpr int64_t kMaxSplits = 10000;
constexpr size_t kBufferBytes = 1 << 20;

enum ValueKind : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kText, kArray, kU64, kI64, kF64 };

// The header from front to back, through a buffer.
class HeaderReader {
 public:
  explicit HeaderReader(const ReadOnlyFile& file)
      : file_(file), end_(std::min(file.size_bytes(), kMaxHeaderBytes)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: {}", file_.name(), what));
  }
  uint64_t at() const { return at_; }
  uint64_t num_left() const { return end_ - at_; }

  template <typename T>
  T number() {
    T value;
    take(&value, sizeof(value));
    return value;
  }
  std::string text(uint64_t max_bytes) {
    const auto length = number<uint64_t>();
    if (length > max_bytes || length > num_left()) fail("a text is longer than the file");
    std::string value(length, '\0');
    take(value.data(), value.size());
    return value;
  }

 private:
  void take(void* to, size_t num_bytes) {
    if (num_bytes > num_left()) fail("the file ends within its header");
    auto* out = static_cast<char*>(to);
    while (num_bytes > 0) {
      if (at_ < buffer_begin_ || at_ >= buffer_begin_ + buffer_.size()) fill();
      const uint64_t from = at_ - buffer_begin_;
      const size_t count = std::min<uint64_t>(num_bytes, buffer_.size() - from);
      std::memcpy(out, buffer_.data() + from, count);
      out += count;
      at_ += count;
      num_bytes -= count;
    }
  }
  void fill() {
    buffer_begin_ = at_;
    buffer_.resize(std::min<uint64_t>(kBufferBytes, num_left()));
    file_.read_at(at_, buffer_.data(), buffer_.size());
  }

  const ReadOnlyFile& file_;
  uint64_t end_;
  uint64_t at_ = 0;
  uint64_t buffer_begin_ = 0;
  std::vector<char> buffer_;
};

// Whole numbers beyond int64 are out of every range that anybody asks for.
GgufValue read_scalar(HeaderReader& in, uint32_t kind) {
  switch (kind) {
    case kU8: return int64_t{in.number<uint8_t>()};
    case kI8: return int64_t{in.number<int8_t>()};
    case kU16: return int64_t{in.number<uint16_t>()};
    case kI16: return int64_t{in.number<int16_t>()};
    case kU32: return int64_t{in.number<uint32_t>()};
    case kI32: return int64_t{in.number<int32_t>()};
    case kF32: return static_cast<double>(in.number<float>());
    case kBool: return in.number<uint8_t>() != 0;
    case kText: return in.text(in.num_left());
    case kU64: return static_cast<int64_t>(std::min<uint64_t>(in.number<uint64_t>(), INT64_MAX));
    case kI64: return in.number<int64_t>();
    case kF64: return in.number<double>();
    default: in.fail(fmt::format("a value of kind {} is not known", kind));
  }
}

double number_of(const GgufValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  return std::get<double>(value);
}

GgufValue read_array(HeaderReader& in) {
  const auto kind = in.number<uint32_t>();
  const auto count = in.number<uint64_t>();
  if (kind == kArray) in.fail("an array of arrays is not supported");
  if (count > in.num_left()) in.fail("an array is longer than the file");  // a byte each at least
  if (kind == kText) {
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < count; ++i) texts.push_back(in.text(in.num_left()));
    return texts;
  }
  std::vector<double> numbers;
  for (uint64_t i = 0; i < count; ++i) numbers.push_back(number_of(read_scalar(in, kind)));
  return numbers;
}

GgufValue read_value(HeaderReader& in) {
  const auto kind = in.number<uint32_t>();
  return kind == kArray ? read_array(in) : read_scalar(in, kind);
}

struct Header {
  std::map<std::string, GgufValue> metadata;
  uint64_t num_tensors = 0;
};

Header read_metadata(HeaderReader& in) {
  constexpr std::string_view kMagic = "GGUF";
  char magic[4];
  for (char& letter : magic) letter = in.number<char>();
  if (std::string_view(magic, sizeof(magic)) != kMagic) in.fail("is no GGUF file");
  const auto version = in.number<uint32_t>();
  if (version != 2 && version != 3)
    in.fail(fmt::format("is of GGUF version {}; known are 2 and 3", version));
  Header header;
  header.num_tensors = in.number<uint64_t>();
  const auto num_keys = in.number<uint64_t>();
  if (header.num_tensors > kMaxEntries || num_keys > kMaxEntries)
    in.fail("has more keys or tensors than can be");
  for (uint64_t i = 0; i < num_keys; ++i) {
    std::string key = in.text(kMaxNameBytes);
    if (!header.metadata.emplace(key, read_value(in)).second)
      in.fail(fmt::format("has the key '{}' twice", key));
  }
  return header;
}

uint64_t num_bytes_of(const HeaderReader& in, const std::string& name, const GgufTensor& tensor) {
  uint64_t count = 1;
  for (const int64_t length : tensor.shape) {
    if (length <= 0 || static_cast<uint64_t>(length) > (uint64_t{1} << 46) / count)
      in.fail(fmt::format("tensor '{}' has a size that cannot be", name));
    count *= static_cast<uint64_t>(length);
  }
  if (tensor.shape.back() % tensor.type->block_values != 0)
    in.fail(fmt::format("tensor '{}': rows of {} values are not whole blocks of {}",
                        name,
                        tensor.shape.back(),
                        tensor.type->name));
  return count / static_cast<uint64_t>(tensor.type->block_values) *
         static_cast<uint64_t>(tensor.type->block_bytes);
}

// Its begin still counts from the first tensor's data.
GgufTensor read_tensor(HeaderReader& in, const std::string& name) {
  GgufTensor tensor;
  const auto num_dimensions = in.number<uint32_t>();
  if (num_dimensions < 1 || num_dimensions > kMaxDimensions)
    in.fail(fmt::format("tensor '{}' has {} dimensions", name, num_dimensions));
  for (uint32_t i = 0; i < num_dimensions; ++i)
    tensor.shape.push_back(static_cast<int64_t>(in.number<uint64_t>()));
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  const auto type = in.number<uint32_t>();
  tensor.type = gguf_type(type);
  if (tensor.type == nullptr)
    in.fail(fmt::format("tensor '{}' is of type {}, which is not supported", name, type));
  tensor.begin = in.number<uint64_t>();
  tensor.num_bytes = num_bytes_of(in, name, tensor);
  return tensor;
}

// "NAME-00001-of-00003.gguf" with another number.
std::filesystem::path split_path(const std::filesystem::path& first, int64_t number) {
  constexpr std::string_view kForm = "-#####-of-#####.gguf";
  std::string name = first.filename().string();
  const size_t tail = name.size() - std::min(name.size(), kForm.size());
  bool fits = name.size() - tail == kForm.size();
  for (size_t i = 0; fits && i < kForm.size(); ++i) {
    const char c = name[tail + i];
    fits = kForm[i] == '#' ? c >= '0' && c <= '9' : c == kForm[i];
  }
  if (!fits)
    throw Error(fmt::format("{}: is a part of a split model and not named ...-00001-of-0000N.gguf",
                            first.string()));
  return first.parent_path() / name.replace(tail + 1, 5, fmt::format("{:05}", number));
}

}  // namespace

bool is_gguf(const std::filesystem::path& model) { return model.extension() == ".gguf"; }

GgufFile::GgufFile(const std::filesystem::path& path) : name_(path.string()) {
  open_part(path);
  const int64_t* number = find<int64_t>("split.no");
  const int64_t* count = find<int64_t>("split.count");
  if (count == nullptr || *count <= 1) return;
  if (*count > kMaxSplits) throw Error(fmt::format("{}: split.count {} cannot be", name_, *count));
  if (number != nullptr && *number != 0)
    throw Error(fmt::format("{}: is part {} of {}: give the first, {}",
                            name_,
                            *number + 1,
                            *count,
                            split_path(path, 1).filename().string()));
  for (int64_t part = 2; part <= *count; ++part) open_part(split_path(path, part));
}

void GgufFile::open_part(const std::filesystem::path& path) {
  const ReadOnlyFile& file = *files_.emplace_back(std::make_unique<ReadOnlyFile>(path));
  HeaderReader in(file);
  Header header = read_metadata(in);
  if (metadata_.empty()) metadata_.swap(header.metadata);
  std::map<std::string, GgufTensor> tensors;
  for (uint64_t i = 0; i < header.num_tensors; ++i) {
    const std::string name = in.text(kMaxNameBytes);
    GgufTensor tensor = read_tensor(in, name);
    tensor.file = &file;
    if (tensors_.contains(name) || !tensors.emplace(name, std::move(tensor)).second)
      in.fail(fmt::format("has the tensor '{}' twice", name));
  }
  const int64_t* given = find<int64_t>("general.alignment");
  const int64_t alignment = given != nullptr ? *given : 32;
  if (alignment < 1 || alignment > (1 << 20)) in.fail("general.alignment cannot be");
  const auto step = static_cast<uint64_t>(alignment);
  const uint64_t data_begin = (in.at() + step - 1) / step * step;
  for (auto& [name, tensor] : tensors) {
    const uint64_t size = file.size_bytes();
    if (data_begin > size || tensor.begin > size - data_begin ||
        tensor.num_bytes > size - data_begin - tensor.begin)
      in.fail(fmt::format("tensor '{}' lies beyond the end of the file", name));
    tensor.begin += data_begin;
  }
  tensors_.merge(tensors);
}

void GgufFile::fail_kind(const std::string& key) const {
  throw Error(fmt::format("{}: '{}' is not of the kind it should be", name_, key));
}

void GgufFile::check_unchanged() const {
  for (const auto& file : files_) file->check_unchanged();
}

}  // namespace outrider
