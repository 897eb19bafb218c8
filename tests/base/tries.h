// For tests of time limits that are short so that the tests are.
#pragma once

namespace outrider::test {

// Whether it is so in one of three tries. A machine that stands still for as long as the limit
// makes whoever gives up right; what is wrong in the code is wrong in every try.
template <typename Attempt>
bool in_one_of_three_tries(const Attempt& attempt) {
  for (int i = 0; i < 3; ++i) {
    if (attempt()) return true;
  }
  return false;
}

}  // namespace outrider::test
