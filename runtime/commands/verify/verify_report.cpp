// See verify_report.h.
#include "runtime/commands/verify/verify_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/commands/bench/report/bench_report.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// 1234567 as 1,234,567.
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (int i = static_cast<int>(text.size()) - 3; i > 0; i -= 3) {
    text.insert(static_cast<size_t>(i), ",");
  }
  return text;
}

std::string accepted_text(const CheckRow& row) {
  if (!row.drafts) return "-";
  if (row.drafts->num_examined == 0) return "none";
  return fmt::format("{:.3f}",
                     static_cast<double>(row.drafts->num_accepted) /
                         static_cast<double>(row.drafts->num_examined));
}

void print_line(std::FILE* out, const CheckRow& row) {
  const bool is_text = row.kind == CheckKind::kEquality;
  fmt::print(out,
             "{:<44} {:<8} {:>11} {:>8} {:>13} {:>15} {:>7}  {}\n",
             row.check,
             row.mode,
             grouped(row.num_sequences) + (is_text ? " texts" : ""),
             accepted_text(row),
             is_text ? grouped(row.num_equal_tokens) + " equal"
                     : fmt::format("{:.1f}", row.test.statistic),
             is_text ? "of " + grouped(row.num_tokens)
                     : fmt::format("{:.1f} (df {})", row.test.limit, row.test.degrees),
             row.kind == CheckKind::kLaw ? fmt::format("{:.4f}", row.found_distance) : "-",
             row.verdict());
  if (!row.problem.empty()) fmt::print(out, "    {}\n", row.problem);
}

Json row_json(const CheckRow& row) {
  constexpr const char* kKinds[] = {"law", "control", "equality"};
  Json json = {{"kind", kKinds[static_cast<size_t>(row.kind)]},
               {"check", row.check},
               {"mode", row.mode},
               {"num_sequences", row.num_sequences},
               {"passed", row.passed()},
               {"verdict", row.verdict()}};
  if (!row.problem.empty()) json["problem"] = row.problem;
  if (row.drafts) {
    json["num_examined"] = row.drafts->num_examined;
    json["num_accepted"] = row.drafts->num_accepted;
    json["num_bonus_drafts"] = row.drafts->num_bonus_drafts;
  }
  if (row.kind == CheckKind::kEquality) {
    json["num_tokens"] = row.num_tokens;
    json["num_equal_tokens"] = row.num_equal_tokens;
  } else {
    json["chi_square"] = row.test.statistic;  // null when infinite
    json["limit"] = row.test.limit;
    json["degrees"] = row.test.degrees;
    json["found_distance"] = row.found_distance;
  }
  return json;
}

}  // namespace

bool CheckRow::passed() const {
  if (!problem.empty()) return false;
  if (kind == CheckKind::kLaw) return test.degrees > 0 && test.fits();
  if (kind == CheckKind::kControl) return test.statistic > test.limit;
  return num_tokens > 0 && num_equal_tokens == num_tokens;
}

std::string CheckRow::verdict() const {
  if (kind == CheckKind::kControl) return passed() ? "caught" : "MISSED";
  return passed() ? "pass" : "FAIL";
}

CheckRow law_row(CheckKind kind, std::string check, std::string mode, const ChiSquare& test) {
  CheckRow row;
  row.kind = kind;
  row.check = std::move(check);
  row.mode = std::move(mode);
  row.test = test;
  return row;
}

bool VerifyReport::all_passed() const {
  for (CheckKind kind : {CheckKind::kLaw, CheckKind::kControl, CheckKind::kEquality}) {
    if (std::none_of(
            rows.begin(), rows.end(), [&](const CheckRow& row) { return row.kind == kind; })) {
      return false;
    }
  }
  return std::all_of(rows.begin(), rows.end(), [](const CheckRow& row) { return row.passed(); });
}

void print_report(const VerifyReport& report, std::FILE* out) {
  fmt::print(out,
             "model {}, draft {}, {} target rank(s)\n\n{:<44} {:<8} {:>11} {:>8} {:>13} {:>15} "
             "{:>7}  {}\n",
             report.model,
             report.draft,
             report.num_target_ranks,
             "check",
             "mode",
             "samples",
             "accepted",
             "statistic",
             "limit",
             "power",
             "verdict");
  for (const CheckRow& row : report.rows) print_line(out, row);
  fmt::print(
      out,
      "\n"
      "statistic: chi-square of the counts against the exact law, or tokens that are equal.\n"
      "limit:     a right program exceeds it with probability {:.0e} in a check, below 1e-6 "
      "in all.\n"
      "power:     a wrong law at this total variation distance is found with probability "
      "0.99.\n"
      "accepted:  draft tokens that were accepted, of those examined.\n"
      "toy:       first tokens of generations of a random toy model whose law is computed.\n"
      "pair:      this pair against the law of its target's own log-probabilities: tokens 2 and 3 "
      "of\n"
      "           answers (top_k {}); every token of long texts, given the text before it, by "
      "rank.\n"
      "text:      whole answers, token by token.\n"
      "control:   broken on purpose; must exceed the limit.\n\n",
      kFalseAlarm,
      kPairTopK);
  int64_t num_failed = 0;
  int64_t num_controls = 0;
  int64_t num_bonus_drafts = 0;  // of the pair, by a draft that works asynchronously
  for (const CheckRow& row : report.rows) {
    if (row.check.starts_with("pair") && row.drafts)
      num_bonus_drafts += row.drafts->num_bonus_drafts;
    num_failed += row.passed() ? 0 : 1;
    num_controls += row.kind == CheckKind::kControl ? 1 : 0;
  }
  fmt::print(out,
             "Of the pair's draft tokens {} were for the bonus position, which come from a "
             "draft that drafts asynchronously.\n",
             grouped(num_bonus_drafts));
  const auto num_rows = static_cast<int64_t>(report.rows.size());
  if (report.all_passed()) {
    fmt::print(out,
               "verdict: EXACT. {} checks passed, {} controls were caught, in {:.1f} s\n",
               num_rows - num_controls,
               num_controls,
               report.seconds);
  } else {
    fmt::print(out,
               "verdict: NOT PROVED. {} of {} checks and controls did not come out as they must, "
               "in {:.1f} s\n",
               num_failed,
               num_rows,
               report.seconds);
  }
}

void write_report_json(const VerifyReport& report, const std::string& path) {
  Json rows = Json::array();
  for (const CheckRow& row : report.rows) rows.push_back(row_json(row));
  const Json json = {{"model", report.model},
                     {"draft", report.draft},
                     {"num_target_ranks", report.num_target_ranks},
                     {"false_alarm_per_check", kFalseAlarm},
                     {"seconds", report.seconds},
                     {"passed", report.all_passed()},
                     {"checks", rows}};
  write_text(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace outrider
