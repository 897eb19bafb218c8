// See sampling_params.h.
#include "scheduler/sampling_params.h"

#include <algorithm>
#include <array>

namespace outrider {
namespace {

// In the order of the values.
using Names = std::array<std::string_view, 4>;
constexpr Names kVerifyModes = {"auto", "standard", "coupled", "block"};
constexpr Names kAsyncDraftings = {"auto", "off", "chain", "cache"};

template <typename Mode>
std::optional<Mode> mode_from_name(const Names& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Mode>(found - names.begin());
}

}  // namespace

const char* verify_mode_name(VerifyMode mode) {
  return kVerifyModes[static_cast<size_t>(mode)].data();
}

std::optional<VerifyMode> verify_mode_from_name(std::string_view name) {
  return mode_from_name<VerifyMode>(kVerifyModes, name);
}

const char* async_drafting_name(AsyncDrafting mode) {
  return kAsyncDraftings[static_cast<size_t>(mode)].data();
}

std::optional<AsyncDrafting> async_drafting_from_name(std::string_view name) {
  return mode_from_name<AsyncDrafting>(kAsyncDraftings, name);
}

}  // namespace outrider
