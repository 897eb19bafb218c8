// The table of `outrider verify`: one row for each thing that was compared, the verdict on each and
// on all. Plain values; filled by verify_toy and verify_pair, printed by command_verify on rank 0.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/exactness/chi_square.h"

namespace outrider {

// A right program fails a law check with this probability, whatever the number of samples.
inline constexpr double kFalseAlarm = 1e-8;
// Cells expected less often are pooled: so far out in the tail Pearson's statistic of rare cells is
// no chi-square any more.
inline constexpr double kLeastExpected = 20.0;

// Of the answers that the pair's laws are counted from.
inline constexpr int kPairTopK = 5;

// What became of draft tokens and bonus draft tokens.
struct DraftCounts {
  int64_t num_examined = 0;  // accepted or rejected
  int64_t num_accepted = 0;
  int64_t num_bonus_drafts = 0;  // of the examined ones, for the bonus position
};

enum class CheckKind : uint8_t {
  kLaw,       // counts must fit an exact law
  kControl,   // counts must not fit it: something was broken on purpose
  kEquality,  // token sequences must be the same
};

struct CheckRow {
  CheckKind kind = CheckKind::kLaw;
  std::string check;
  std::string mode;
  int64_t num_sequences = 0;  // sampled, or compared
  // Laws and controls.
  ChiSquare test;
  double found_distance = 0.0;  // smallest total variation distance found with 99% probability
  // Equality.
  int64_t num_tokens = 0;             // compared
  int64_t num_equal_tokens = 0;       // of these, before the first difference of each sequence
  std::optional<DraftCounts> drafts;  // of speculation in it
  std::string problem;                // one sentence; the row then fails whatever the numbers are

  bool passed() const;
  std::string verdict() const;  // pass, FAIL, caught, MISSED
};

CheckRow law_row(CheckKind kind, std::string check, std::string mode, const ChiSquare& test);

struct VerifyReport {
  std::string model;
  std::string draft;
  int num_target_ranks = 1;
  std::vector<CheckRow> rows;
  double seconds = 0.0;

  // Every row passed, and there is at least one of each kind: a report of nothing proves nothing.
  bool all_passed() const;
  int exit_code() const { return all_passed() ? 0 : 1; }
};

void print_report(const VerifyReport& report, std::FILE* out);
// Throws Error when the file cannot be written.
void write_report_json(const VerifyReport& report, const std::string& path);

}  // namespace outrider
