// The part of `outrider verify` that needs no model: every sampler under every rule on toy models
// whose law is known, and rules broken on purpose. Called on rank 0, on threads of its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/commands/verify/verify_report.h"
#include "scheduler/exactness/law_sampler.h"

namespace outrider {

struct ToyChecks {
  int32_t num_samples = 30000;             // of each law
  LawFault broken_rule = LawFault::kNone;  // in all checks, to see them fail
};

using Progress = std::function<void(const std::string&)>;

// The same rows for the same options on every machine: the noise has fixed seeds. Throws Error when
// a signal asks to stop.
std::vector<CheckRow> run_toy_checks(const ToyChecks& options, const Progress& progress);

}  // namespace outrider
