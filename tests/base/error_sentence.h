// The sentence of an Error, for tests of what is refused.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "runtime/base/error.h"

namespace outrider {

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline ::testing::AssertionResult fails_with(const std::function<void()>& action,
                                             const std::string& part) {
  const std::string sentence = error_of(action);
  if (sentence.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << sentence << "' has no '" << part << "'";
}

}  // namespace outrider
