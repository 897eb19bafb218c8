// See sampling_params.h.
#include "scheduler/sampling_params.h"

namespace outrider {

const char* verify_mode_name(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::kStandard:
      return "standard";
    case VerifyMode::kBlock:
      return "block";
    case VerifyMode::kCoupled:
      return "coupled";
    case VerifyMode::kAuto:
      break;
  }
  return "auto";
}

std::optional<VerifyMode> verify_mode_from_name(std::string_view name) {
  for (VerifyMode mode :
       {VerifyMode::kAuto, VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    if (name == verify_mode_name(mode)) return mode;
  }
  return std::nullopt;
}

const char* async_drafting_name(AsyncDrafting mode) {
  switch (mode) {
    case AsyncDrafting::kOff:
      return "off";
    case AsyncDrafting::kChain:
      return "chain";
    case AsyncDrafting::kCache:
      return "cache";
    case AsyncDrafting::kAuto:
      break;
  }
  return "auto";
}

std::optional<AsyncDrafting> async_drafting_from_name(std::string_view name) {
  for (AsyncDrafting mode :
       {AsyncDrafting::kAuto, AsyncDrafting::kOff, AsyncDrafting::kChain, AsyncDrafting::kCache}) {
    if (name == async_drafting_name(mode)) return mode;
  }
  return std::nullopt;
}

}  // namespace outrider
