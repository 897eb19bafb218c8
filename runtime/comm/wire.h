// Fixed-layout binary messages: what ranks say to each other, byte by byte. Ranks run the same
// binary on the same byte order (little endian); a reader trusts nothing and throws Error on a
// short or oversized field.
//
// What may be put and got: numbers, texts and lists (their length, then the elements), and structs
// whose fields a function beside their messages lists, once for both ways:
//   void fields_of(auto& wire, Is<Fact> auto& fact) { wire.fields(fact.name, fact.value); }
// It stands in namespace outrider itself, where writer and reader find it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {

using Bytes = std::vector<std::byte>;

// The struct: const for a writer, not so for a reader.
template <typename T, typename Struct>
concept Is = std::is_same_v<std::remove_const_t<T>, Struct>;

template <typename T>
concept WireNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <typename T>
concept WireList = requires(T list) {
  list.data();
  list.resize(1);
};

// Else a list of it goes in one piece.
template <typename T, typename Wire>
concept HasFields = requires(Wire& wire, T& value) {
  fields_of(wire, value);
};

class WireWriter {
 public:
  template <typename T>
  void put(const T& value) {
    if constexpr (WireNumber<T>) {
      append(&value, sizeof(T));
    } else if constexpr (WireList<T>) {
      put_list(value);
    } else {
      fields_of(*this, value);
    }
  }
  template <typename... Fields>
  void fields(const Fields&... values) {
    (put(values), ...);
  }
  Bytes take() { return std::move(bytes_); }

 private:
  template <typename List>
  void put_list(const List& list) {
    using T = typename List::value_type;
    put(static_cast<uint32_t>(list.size()));
    // An element takes less here than in memory, mostly.
    const size_t room = bytes_.size() + list.size() * sizeof(T);
    if (room > bytes_.capacity()) bytes_.reserve(std::max(room, 2 * bytes_.capacity()));
    if constexpr (std::is_trivially_copyable_v<T> && !HasFields<const T, WireWriter>) {
      append(list.data(), list.size() * sizeof(T));
    } else {
      for (const T& element : list) put(element);
    }
  }
  // Not inlined: GCC 12 takes the first word in an empty vector for an overrun.
  [[gnu::noinline]] void append(const void* data, size_t num_bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + num_bytes);
  }

  Bytes bytes_;
};

// A message of these fields.
template <typename... Fields>
Bytes wire_bytes(const Fields&... values) {
  WireWriter out;
  out.fields(values...);
  return out.take();
}

class WireReader {
 public:
  explicit WireReader(const Bytes& bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value{};
    if constexpr (std::is_same_v<T, bool>) {
      value = get<uint8_t>() != 0;
    } else if constexpr (WireNumber<T>) {
      need(sizeof(T));
      std::memcpy(&value, bytes_.data() + position_, sizeof(T));
      position_ += sizeof(T);
    } else if constexpr (WireList<T>) {
      get_list(value);
    } else {
      fields_of(*this, value);
    }
    return value;
  }
  template <typename... Fields>
  void fields(Fields&... values) {
    ((values = get<Fields>()), ...);
  }
  // A list of bytes, where it lies.
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
  // Not inlined: GCC 12 warns of a size that it works out from a message known to be cut short.
  template <typename List>
  [[gnu::noinline]] void get_list(List& list) {
    using T = typename List::value_type;
    const size_t count = get<uint32_t>();
    if constexpr (std::is_trivially_copyable_v<T> && !HasFields<T, WireReader>) {
      need(count * sizeof(T));  // 32 bits times a few bytes: no overflow
      list.resize(count);
      if (count > 0) std::memcpy(list.data(), bytes_.data() + position_, count * sizeof(T));
      position_ += count * sizeof(T);
    } else {
      need(count);  // every element takes at least a byte
      // In memory an element may take 300 times its bytes here, which are not known to be elements.
      list.reserve(std::min<size_t>(count, (bytes_.size() - position_) / sizeof(T)));
      for (size_t i = 0; i < count; ++i) list.push_back(get<T>());
    }
  }
  void need(size_t count) const {
    if (bytes_.size() - position_ < count) throw Error("a message between ranks is cut short");
  }

  const Bytes& bytes_;
  size_t position_ = 0;
};

}  // namespace outrider
