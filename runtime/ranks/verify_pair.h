// The part of `outrider verify` on the loaded pair: sampled distributions against the target's own
// law, and texts that must be the same. A front end on rank 0, one thread; every request goes
// through the running engine as any other.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/ranks/job.h"
#include "runtime/ranks/verify_report.h"

namespace outrider {

struct PairChecks {
  std::string prompt;            // of the distribution tests
  int32_t num_samples = 10000;   // answers per mode
  int32_t num_texts = 12;        // of the equality tests
  int32_t num_text_tokens = 64;  // of each
  std::function<void(const std::string&)> progress;
};

// Rows of part pair: direct sampling and every rule against the exact law of tokens 2 and 3, given
// nothing but the prompt (token 1 comes from the prompt's own round, which has no draft yet). The
// law is that of temperature 1 and top_k kPairTopK, from the log-probabilities of requests without
// speculation. With a control: the same counts against the law of another temperature.
std::vector<CheckRow> run_law_checks(const FrontEndContext& context, const PairChecks& options);

// Rows of part text: greedy and seeded answers with speculation on or off, of every draft length,
// alone and together.
std::vector<CheckRow> run_text_checks(const FrontEndContext& context, const PairChecks& options);

}  // namespace outrider
