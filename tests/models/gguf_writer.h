// Writes GGUF files for tests, by the format's own page.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace outrider::test {

class GgufWriter {
 public:
  void text(const std::string& key, const std::string& value) { add(key, 8, sized(value)); }
  void number(const std::string& key, uint32_t value) { add(key, 4, bytes(value)); }
  void real(const std::string& key, float value) { add(key, 6, bytes(value)); }
  void flag(const std::string& key, bool value) { add(key, 7, std::string(1, value ? 1 : 0)); }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    std::string all = bytes(uint32_t{8}) + bytes(uint64_t{values.size()});
    for (const std::string& value : values) all += sized(value);
    add(key, 9, all);
  }
  template <typename T>
  void numbers(const std::string& key, uint32_t kind, const std::vector<T>& values) {
    std::string all = bytes(kind) + bytes(uint64_t{values.size()});
    for (const T value : values) all += bytes(value);
    add(key, 9, all);
  }
  // shape: outermost first.
  void tensor(const std::string& name,
              const std::vector<int64_t>& shape,
              uint32_t type,
              const std::string& data) {
    std::string info = sized(name) + bytes(static_cast<uint32_t>(shape.size()));
    for (auto length = shape.rbegin(); length != shape.rend(); ++length)
      info += bytes(static_cast<uint64_t>(*length));
    infos_ += info + bytes(type) + bytes(uint64_t{data_.size()});
    data_ += data + std::string((32 - data.size() % 32) % 32, '\0');
    ++num_tensors_;
  }
  std::string whole() const {
    std::string file = "GGUF" + bytes(uint32_t{3}) + bytes(num_tensors_) + bytes(num_keys_) +
                       keys_ + infos_;
    file += std::string((32 - file.size() % 32) % 32, '\0');
    return file + data_;
  }

 private:
  template <typename T>
  static std::string bytes(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  static std::string sized(const std::string& text) { return bytes(uint64_t{text.size()}) + text; }
  void add(const std::string& key, uint32_t kind, const std::string& value) {
    keys_ += sized(key) + bytes(kind) + value;
    ++num_keys_;
  }

  std::string keys_, infos_, data_;
  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
};

}  // namespace outrider::test
