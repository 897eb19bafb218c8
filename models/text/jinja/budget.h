// What one rendering of a chat template may still spend. Every loop turn, node, copied element and
// built byte of the evaluator is charged here, so a crafted template or request ends in a Failure
// instead of a busy thread. One object per rendering, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace outrider::jinja {

// Something the template did wrong. Carries no line: whoever runs the template knows it and turns
// the failure into an outrider::Error.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& sentence) : std::runtime_error(sentence) {}
};

inline constexpr int kMaxEvaluationDepth = 1200;  // nested nodes, macro calls included
inline constexpr int kMaxValueDepth = 100;        // lists and dicts inside each other
inline constexpr int64_t kMaxRange = 10'000;

class Budget {
 public:
  Budget(int64_t max_steps, size_t max_text_bytes)
      : steps_left_(max_steps), max_text_bytes_(max_text_bytes), work_left_(16 * max_text_bytes) {}

  void step(int64_t count = 1) {
    if (count > steps_left_) throw Failure("the template takes too many evaluation steps");
    steps_left_ -= count;
  }
  // bytes read or written by a string operation
  void work(size_t bytes) {
    if (bytes > work_left_) throw Failure("the template handles too much text");
    work_left_ -= bytes;
  }
  void check_text(size_t bytes) const {
    if (bytes > max_text_bytes_) {
      throw Failure("the template makes a text longer than " + std::to_string(max_text_bytes_) +
                    " bytes");
    }
  }
  int& depth() { return depth_; }

 private:
  int64_t steps_left_;
  size_t max_text_bytes_;
  size_t work_left_;
  int depth_ = 0;
};

// One level of evaluation: refuses to go so deep that the thread's stack could end.
class DepthGuard {
 public:
  explicit DepthGuard(Budget& budget) : budget_(budget) {
    if (budget_.depth() >= kMaxEvaluationDepth) {
      throw Failure("the template calls itself too deeply");
    }
    ++budget_.depth();
  }
  ~DepthGuard() { --budget_.depth(); }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Budget& budget_;
};

}  // namespace outrider::jinja
