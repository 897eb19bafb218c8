// Setting something up on all members of a group: it works for all or is an Error for all.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/group/target_group.h"

namespace outrider {

// By rank.
template <typename T>
std::vector<T> gather_values(TargetGroup& group, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// Does step() and waits until all members have done theirs. Throws "`what`: rank R: ..." on all of
// them when one of them threw an Error.
template <typename Step>
void set_up_together(TargetGroup& group, const std::string& what, const Step& step) {
  std::array<char, 512> problem{};
  try {
    step();
  } catch (const Error& error) {
    std::string(error.what()).copy(problem.data(), problem.size() - 1);
  }
  const auto problems = gather_values(group, problem);
  for (size_t r = 0; r < problems.size(); ++r) {
    if (problems[r][0] == '\0') continue;
    throw Error(fmt::format("{}: rank {}: {}", what, r, problems[r].data()));
  }
}

}  // namespace outrider
