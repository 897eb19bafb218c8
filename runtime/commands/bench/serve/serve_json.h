// The part of `bench serve`'s JSON that is its own: vLLM's figures by vLLM's names, and every
// request. For serve_report.cpp.
#pragma once

#include <string>
#include <vector>

#include "runtime/commands/bench/serve/serve_report.h"

namespace outrider {

struct ServeJsonEntry {
  const ServeResult* result = nullptr;
  const ServeSummary* summary = nullptr;
  SpeculationCount speculation;
};

// Text of a JSON object: "results", one for each load and variant, with "requests"; with a single
// result its figures and vLLM's arrays also stand at the top.
std::string serve_details_json(const ServeFindings& findings,
                               const std::vector<ServeJsonEntry>& entries);

}  // namespace outrider
