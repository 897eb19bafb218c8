// The part of `outrider verify` on the loaded pair: sampled distributions against the target's own
// law, and texts that must be the same. A front end on rank 0, one thread; every request goes
// through the running engine as any other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/commands/bench/bench_requests.h"
#include "runtime/commands/verify/verify_report.h"
#include "runtime/ranks/job/job.h"

namespace outrider {

// Drafts are waited for (RunConfig's draft_patience_s), but one may still be away for a while. A
// pass without any says nothing about speculation and is made anew.
inline constexpr int kMostAttempts = 8;

// How the pair is sampled for its laws: without speculation, and by each rule.
struct SampledMode {
  const char* name;
  VerifyMode mode;
  int32_t max_draft_len;  // 0: no speculation
  uint64_t noise;         // its seeds differ from those of the others
};
inline constexpr SampledMode kSampledModes[] = {
    {"direct", VerifyMode::kStandard, 0, 0},
    {"standard", VerifyMode::kStandard, -1, 1},
    {"block", VerifyMode::kBlock, -1, 2},
    {"coupled", VerifyMode::kCoupled, -1, 3},
};

struct PairChecks {
  std::string prompt;                  // of the distribution tests
  int32_t num_samples = 6000;          // answers per mode
  int32_t num_context_tokens = 16000;  // of long texts per mode
  int32_t num_texts = 12;              // of the equality tests
  int32_t num_text_tokens = 64;        // of each
  std::function<void(const std::string&)> progress;
};

// Answers to questions 0 .. num_questions - 1, in order; at most num_in_flight at once. A question
// is a prompt and params with noise_seed. Throws as the functions of bench_requests.h.
void ask_engine(const FrontEndContext& context,
                size_t num_questions,
                size_t num_in_flight,
                const std::function<Request(size_t)>& question,
                const std::function<void(size_t, const BenchAnswer&)>& take);

// As many as keep every slot busy, within what the queue takes.
size_t requests_in_flight(const RunConfig& config);

void add_drafts(const BenchAnswer& answer, DraftCounts* counts);

// A row of the pair's laws; with a problem when it proves nothing, whatever its numbers.
CheckRow pair_row(const char* check,
                  const ChiSquare& test,
                  const SampledMode& mode,
                  const DraftCounts& drafts,
                  int64_t num_sequences);

// Rows of part pair: direct sampling and every rule against the exact law of tokens 2 and 3, given
// nothing but the prompt (token 1 comes from the prompt's own round, which has no draft yet). The
// law is that of temperature 1 and top_k kPairTopK, from the log-probabilities of requests without
// speculation. With a control: the same counts against the law of another temperature.
std::vector<CheckRow> run_law_checks(const FrontEndContext& context, const PairChecks& options);

// Every token of long texts, at temperature 1 without filters, given the text before it: how often
// tokens of each rank came out (1, 2, 3, 4, 5-8, 9-16, the rest) against how likely they were in
// the target's law at that place, which is asked for by scoring the finished text. One context in
// the toy checks and run_law_checks, thousands here.
std::vector<CheckRow> run_context_checks(const FrontEndContext& context, const PairChecks& options);

// Rows of part text: greedy and seeded answers with speculation on or off, of every draft length,
// alone and together.
std::vector<CheckRow> run_text_checks(const FrontEndContext& context, const PairChecks& options);

}  // namespace outrider
