// A list that is mostly short: up to kUsual elements lie in the object itself, so that making,
// copying and dropping one takes no memory from the heap. There may be more; then all are there.
// Elements are plain values. Not shared between threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace outrider {

template <typename T, size_t kUsual>
class ShortList {
  static_assert(std::is_trivially_copyable_v<T> && kUsual > 0);

 public:
  using value_type = T;

  ShortList() {}  // NOLINT: the elements' memory stays as it is
  ShortList(std::initializer_list<T> elements) { assign(elements); }
  explicit ShortList(std::span<const T> elements) { assign(elements); }
  template <std::contiguous_iterator Iterator>
  ShortList(Iterator begin, Iterator end) {
    assign({begin, end});
  }
  ShortList(const std::vector<T>& elements) { assign(elements); }  // NOLINT: a list is a list
  ShortList(const ShortList& other) { assign(other); }
  ShortList(ShortList&& other) noexcept { take(std::move(other)); }
  ShortList& operator=(const ShortList& other) {
    if (this != &other) assign(other);
    return *this;
  }
  ShortList& operator=(ShortList&& other) noexcept {
    if (this != &other) take(std::move(other));
    return *this;
  }
  ~ShortList() = default;

  size_t size() const { return many_.empty() ? num_few_ : many_.size(); }
  bool empty() const { return size() == 0; }
  T* data() { return many_.empty() ? few() : many_.data(); }
  const T* data() const { return many_.empty() ? few() : many_.data(); }
  T* begin() { return data(); }
  T* end() { return data() + size(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T& front() { return data()[0]; }
  const T& front() const { return data()[0]; }
  T& back() { return data()[size() - 1]; }
  const T& back() const { return data()[size() - 1]; }

  void push_back(const T& element) {
    if (many_.empty() && num_few_ < kUsual) {
      few()[num_few_++] = element;
      return;
    }
    const T kept = element;  // it may be one of ours
    if (many_.empty()) move_to_many(kUsual + 1);
    many_.push_back(kept);
  }
  // New elements are T{}.
  void resize(size_t size) {
    if (many_.empty() && size <= kUsual) {
      if (size > num_few_) std::fill(few() + num_few_, few() + size, T{});
      num_few_ = static_cast<uint32_t>(size);
      return;
    }
    if (many_.empty()) move_to_many(size);
    many_.resize(size);
  }
  // Not of its own elements.
  void assign(std::span<const T> elements) {
    clear();
    if (elements.size() > kUsual) {
      many_.assign(elements.begin(), elements.end());
      return;
    }
    std::copy(elements.begin(), elements.end(), few());
    num_few_ = static_cast<uint32_t>(elements.size());
  }
  void clear() {
    many_.clear();
    num_few_ = 0;
  }

  friend bool operator==(const ShortList& a, const ShortList& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  T* few() { return reinterpret_cast<T*>(memory_); }
  const T* few() const { return reinterpret_cast<const T*>(memory_); }

  void take(ShortList&& other) noexcept {
    many_ = std::move(other.many_);
    num_few_ = std::exchange(other.num_few_, 0);
    std::copy(other.few(), other.few() + num_few_, few());
    other.many_.clear();
  }
  void move_to_many(size_t room) {
    many_.reserve(room);
    many_.assign(few(), few() + num_few_);
    num_few_ = 0;
  }

  alignas(T) std::byte memory_[kUsual * sizeof(T)];
  uint32_t num_few_ = 0;
  std::vector<T> many_;  // not empty: the elements are here
};

}  // namespace outrider
