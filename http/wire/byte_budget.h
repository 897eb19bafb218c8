// What requests under way may hold together in bytes, so that many large ones at once cannot take
// the machine's memory. Thread-safe; a share gives back what it took when it ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

namespace outrider {

class ByteBudget {
 public:
  explicit ByteBudget(size_t most_bytes) : most_bytes_(most_bytes) {}

  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { swap(other); }
    Share& operator=(Share&& other) noexcept {
      Share(std::move(other)).swap(*this);
      return *this;
    }
    ~Share() {
      if (budget_ != nullptr) budget_->taken_bytes_ -= bytes_;
    }

   private:
    friend class ByteBudget;
    void swap(Share& other) {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
    }
    ByteBudget* budget_ = nullptr;
    size_t bytes_ = 0;
  };

  // Makes a share as large as `bytes`, never smaller than it is. False, and nothing taken, when
  // that is more than what is left.
  bool grow(Share* share, size_t bytes) {
    if (bytes <= share->bytes_) return true;
    const size_t more = bytes - share->bytes_;
    if (taken_bytes_.fetch_add(more) + more > most_bytes_) {
      taken_bytes_ -= more;
      return false;
    }
    share->budget_ = this;
    share->bytes_ = bytes;
    return true;
  }
  size_t most_bytes() const { return most_bytes_; }

 private:
  const size_t most_bytes_;
  std::atomic<size_t> taken_bytes_{0};
};

// Smaller bodies need no budget: one each of all connections is little.
inline constexpr size_t kLargeBodyBytes = 64u << 10;

struct RequestBody {
  std::string text;
  ByteBudget::Share share;  // of a large one
};

}  // namespace outrider
