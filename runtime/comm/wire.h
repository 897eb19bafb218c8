// Fixed-layout binary messages: what ranks say to each other, byte by byte. Ranks run the same
// binary on the same byte order (little endian); a reader trusts nothing and throws Error on a
// short or oversized field.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {

using Bytes = std::vector<std::byte>;

class WireWriter {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  void put_bool(bool value) { put<uint8_t>(value ? 1 : 0); }
  void put_string(std::string_view text) {
    put<uint32_t>(static_cast<uint32_t>(text.size()));
    const auto* from = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), from, from + text.size());
  }
  // Element count, then the elements by write(writer, element).
  template <typename T, typename Write>
  void put_list(const std::vector<T>& list, Write write) {
    put<uint32_t>(static_cast<uint32_t>(list.size()));
    for (const T& element : list) write(*this, element);
  }
  // Plain values without padding, in one piece.
  template <typename List>
  void put_numbers(const List& list) {
    using T = typename List::value_type;
    static_assert(std::is_trivially_copyable_v<T>);
    put<uint32_t>(static_cast<uint32_t>(list.size()));
    const auto* from = reinterpret_cast<const std::byte*>(list.data());
    bytes_.insert(bytes_.end(), from, from + list.size() * sizeof(T));
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class WireReader {
 public:
  explicit WireReader(const Bytes& bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    need(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  bool get_bool() { return get<uint8_t>() != 0; }
  std::string get_string() {
    const auto size = get<uint32_t>();
    need(size);
    std::string text(reinterpret_cast<const char*>(bytes_.data() + position_), size);
    position_ += size;
    return text;
  }
  template <typename T, typename Read>
  std::vector<T> get_list(Read read) {
    const auto count = get<uint32_t>();
    need(count);  // every element takes at least a byte
    std::vector<T> list;
    // In memory an element may take 300 times its bytes here, which are not known to be elements.
    list.reserve(std::min<size_t>(count, (bytes_.size() - position_) / sizeof(T)));
    for (uint32_t i = 0; i < count; ++i) list.push_back(read(*this));
    return list;
  }
  template <typename T>
  std::vector<T> get_numbers() {
    std::vector<T> list;
    get_numbers(&list);
    return list;
  }
  // Not inlined: GCC 12 warns of a size that it works out from a message known to be cut short.
  template <typename List>
  [[gnu::noinline]] void get_numbers(List* list) {
    using T = typename List::value_type;
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t count = get<uint32_t>();
    need(count * sizeof(T));  // 32 bits times a few bytes: no overflow
    list->resize(count);
    if (count > 0) std::memcpy(list->data(), bytes_.data() + position_, count * sizeof(T));
    position_ += count * sizeof(T);
  }
  // A list of bytes (put_numbers), where it lies.
  std::span<const std::byte> get_bytes() {
    const size_t count = get<uint32_t>();
    need(count);
    position_ += count;
    return std::span(bytes_).subspan(position_ - count, count);
  }
  void expect_end() const {
    if (position_ != bytes_.size()) throw Error("a message between ranks has bytes after its end");
  }

 private:
  void need(size_t count) const {
    if (bytes_.size() - position_ < count) throw Error("a message between ranks is cut short");
  }

  const Bytes& bytes_;
  size_t position_ = 0;
};

}  // namespace outrider
