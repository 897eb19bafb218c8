// See decode_report.h.
#include "runtime/commands/bench/decode/decode_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using Json = nlohmann::json;

double by_theorem(const DecodeMeasurement& pair, const DecodeLength& length) {
  return predicted_speedup(length.alpha(), pair.cost_ratio(length), length.draft_len);
}

double by_steps(const DecodeMeasurement& pair, const DecodeLength& length) {
  return predicted_speedup(length.alpha(), length.draft_len, pair.step_times(length));
}

double verify_over_plain(const DecodeMeasurement& pair, const DecodeLength& length) {
  const PairStepTimes times = pair.step_times(length);
  return times.plain > 0 ? times.verify / times.plain : 0;
}

Json length_json(const DecodeMeasurement& pair, const DecodeLength& length) {
  const Interval speedup = pair.speedup(length);
  const PairStepTimes times = pair.step_times(length);
  Json json = {{"num_speculative_tokens", length.draft_len},
               {"tokens_per_s", length.tokens_per_s},
               {"acceptance", length.alpha()},
               {"drafted_per_position", length.drafted},
               {"examined_per_position", length.examined},
               {"accepted_per_position", length.accepted},
               {"tokens_per_round", length.tokens_per_round()},
               {"cost_ratio", pair.cost_ratio(length)},
               {"draft_step_s", times.draft / 1e3},
               {"target_step_s", times.plain / 1e3},
               {"verify_step_s", times.verify / 1e3},
               {"speedup_measured", speedup.value},
               {"speedup_low", speedup.low},
               {"speedup_high", speedup.high},
               {"num_same_text", pair.num_same_text(length)},
               {"num_answers", length.texts.size()}};
  if (length.is_auto) {
    json["num_speculative_tokens"] = "auto";
    json["mean_draft_len"] = length.mean_draft_len();
  } else {
    json["speedup_predicted"] = by_theorem(pair, length);
    json["speedup_predicted_by_steps"] = by_steps(pair, length);
  }
  return json;
}

std::string details_of(const std::vector<DecodeMeasurement>& pairs, const DecodeOptions& options) {
  const DecodeMeasurement& first = pairs.front();
  Json json = length_json(first, first.lengths.back());
  json["tokens_per_s_on"] = json["tokens_per_s"];
  json.erase("tokens_per_s");
  json["tokens_per_s_off"] = first.plain().tokens_per_s;
  json["model"] = first.model;
  json["draft"] = first.draft;
  json["num_target_ranks"] = first.num_target_ranks;
  json["temperature"] = options.temperature;
  json["concurrency"] = options.concurrency;
  json["pairs"] = Json::array();
  for (const DecodeMeasurement& pair : pairs) {
    Json entry = {{"model", pair.model}, {"draft", pair.draft}, {"lengths", Json::array()}};
    for (const DecodeLength& length : pair.lengths)
      entry["lengths"].push_back(length_json(pair, length));
    json["pairs"].push_back(std::move(entry));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

BenchTable lengths_table(const DecodeMeasurement& pair, std::string title) {
  BenchTable table{std::move(title),
                   {"draft length",
                    "tokens/s",
                    "alpha",
                    "tokens/round",
                    "draft step, ms",
                    "step, ms",
                    "step / plain",
                    "speed-up predicted",
                    "by step times",
                    "measured",
                    "same text"},
                   {}};
  for (const DecodeLength& length : pair.lengths) {
    const PairStepTimes times = pair.step_times(length);
    std::vector<std::string> row = {length.draft_len == 0 ? "0 (off)" : length.name(),
                                    fmt::format("{:.1f}", median(length.tokens_per_s))};
    if (length.draft_len == 0) {
      row.insert(row.end(), {"", fmt::format("{:.2f}", length.tokens_per_round()), ""});
      row.insert(row.end(), {fmt::format("{:.3f}", times.plain), "1.00", "", "", "", ""});
    } else {
      row.insert(row.end(),
                 {fmt::format("{:.3f}", length.alpha()),
                  fmt::format("{:.2f}", length.tokens_per_round()),
                  fmt::format("{:.3f}", times.draft),
                  fmt::format("{:.3f}", times.verify),
                  fmt::format("{:.2f}", verify_over_plain(pair, length)),
                  length.is_auto ? "" : fmt::format("{:.2f}", by_theorem(pair, length)),
                  length.is_auto ? "" : fmt::format("{:.2f}", by_steps(pair, length)),
                  interval_text(pair.speedup(length), 2),
                  fmt::format("{} of {}", pair.num_same_text(length), length.texts.size())});
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

BenchTable positions_table(const DecodeLength& length) {
  BenchTable table{fmt::format("acceptance by position, draft length {}", length.name()),
                   {"position", "accepted / examined", "examined"},
                   {}};
  for (size_t i = 0; i < length.examined.size(); ++i) {
    const double share = length.examined[i] > 0 ? static_cast<double>(length.accepted[i]) /
                                                      static_cast<double>(length.examined[i])
                                                : 0;
    table.rows.push_back(
        {std::to_string(i + 1), fmt::format("{:.3f}", share), std::to_string(length.examined[i])});
  }
  return table;
}

void add_samples(const DecodeMeasurement& pair, const std::string& suffix, BenchReport* report) {
  for (const DecodeLength& length : pair.lengths) {
    const BenchX x = {"draft length", length.is_auto ? length.mean_draft_len() : length.draft_len};
    report->add_samples("decode" + suffix, "tokens/s", length.tokens_per_s, x);
    report->add_series("step" + suffix, "ms", length.step_ms, x);
    if (!length.prefill_tokens_per_s.empty())
      report->add_series("prefill" + suffix, "tokens/s", length.prefill_tokens_per_s, x);
    if (length.draft_len == 0) continue;
    report->add_series("draft step" + suffix, "ms", length.draft_step_ms, x);
    report->add_figure("acceptance" + suffix, "", length.alpha(), x);
    report->add_figure("speed-up measured" + suffix, "", pair.speedup(length), x);
    if (length.is_auto) continue;
    report->add_figure("speed-up predicted" + suffix, "", by_theorem(pair, length), x);
    report->add_figure("speed-up predicted by step times" + suffix, "", by_steps(pair, length), x);
  }
}

PlotPanel by_length_panel(const std::vector<DecodeMeasurement>& pairs) {
  PlotPanel panel{"speed-up over plain decoding", "draft length K", "speed-up", {}};
  int color = 0;
  for (const DecodeMeasurement& pair : pairs) {
    const double alpha = pair.lengths.back().alpha();
    PlotSeries measured{fmt::format("alpha {:.2f}, measured", alpha), PlotMark::kDots, color, {}};
    PlotSeries steps{fmt::format("alpha {:.2f}, by step times", alpha), PlotMark::kLine, color, {}};
    PlotSeries theorem{pairs.size() == 1 ? "Theorem 3.8" : "", PlotMark::kDashedLine, color, {}};
    for (const DecodeLength& length : pair.lengths) {
      if (length.draft_len == 0) continue;
      const double x = length.is_auto ? length.mean_draft_len() : length.draft_len;
      const Interval speedup = pair.speedup(length);
      measured.points.push_back(plot_point(x, speedup));
      if (length.is_auto) continue;
      steps.points.push_back({x, by_steps(pair, length)});
      theorem.points.push_back({x, by_theorem(pair, length)});
    }
    panel.series.insert(panel.series.end(), {steps, theorem, measured});
    ++color;
  }
  std::erase_if(panel.series, [](const PlotSeries& series) { return series.points.empty(); });
  return panel;
}

// For one draft length: the formula's line through all acceptances, with the mean of the pairs'
// step times, and what each pair gave.
PlotPanel by_acceptance_panel(const std::vector<DecodeMeasurement>& pairs) {
  PlotPanel panel{"speed-up against acceptance", "acceptance alpha", "speed-up", {}};
  for (size_t n = 1; n < pairs.front().lengths.size(); ++n) {
    const int32_t draft_len = pairs.front().lengths[n].draft_len;
    const int color = static_cast<int>(n) - 1;
    const bool is_auto = pairs.front().lengths[n].is_auto;
    const std::string name = is_auto ? "auto" : fmt::format("{}", draft_len);
    PlotSeries points{fmt::format("K = {}, measured", name), PlotMark::kDots, color, {}};
    PairStepTimes times;
    for (const DecodeMeasurement& pair : pairs) {
      const DecodeLength& length = pair.lengths[n];
      const PairStepTimes own = pair.step_times(length);
      times.plain += own.plain;
      times.verify += own.verify;
      times.draft += own.draft;
      const Interval speedup = pair.speedup(length);
      points.points.push_back(plot_point(length.alpha(), speedup));
    }
    PlotSeries line{fmt::format("K = {}, formula", name), PlotMark::kLine, color, {}};
    for (int percent = 0; !is_auto && percent < 100; percent += 2)
      line.points.push_back(
          {percent / 100.0, predicted_speedup(percent / 100.0, draft_len, times)});
    panel.series.insert(panel.series.end(), {line, points});
  }
  std::erase_if(panel.series, [](const PlotSeries& series) { return series.points.empty(); });
  return panel;
}

}  // namespace

void report_decode(const std::vector<DecodeMeasurement>& pairs,
                   const DecodeOptions& options,
                   BenchReport* report) {
  const DecodeMeasurement& first = pairs.front();
  report->title = fmt::format("model {}, draft {}, {} target rank(s), temperature {}, {} in flight",
                              first.model,
                              first.draft.empty() ? "none" : first.draft,
                              first.num_target_ranks,
                              options.temperature,
                              options.concurrency);
  report->details = details_of(pairs, options);
  for (const DecodeMeasurement& pair : pairs) {
    const std::string name = fmt::format("{}, draft {}", pair.model, pair.draft);
    add_samples(pair, pairs.size() == 1 ? "" : ", " + name, report);
    report->tables.push_back(lengths_table(pair, pairs.size() == 1 ? "" : name));
    const auto& prefill = pair.plain().prefill_tokens_per_s;
    if (!prefill.empty()) {
      report->tables.push_back(
          {"",
           {"", ""},
           {{"prompt tokens/s until the first token", fmt::format("{:.1f}", median(prefill))}}});
    }
    if (pair.lengths.size() > 1) report->tables.push_back(positions_table(pair.lengths.back()));
  }
  if (first.lengths.back().is_auto) {
    report->notes = {
        "draft length auto: the planner's choice in each round; no formula foretells it"};
  } else {
    report->notes = {
        "speed-up predicted: Leviathan et al., Theorem 3.8 (a verify as dear as a step);",
        "by step times: expected tokens x plain step / (verify step + K x draft step)"};
  }
  report->plot = {.title = report->title, .panels = {by_length_panel(pairs)}};
  if (pairs.size() > 1) report->plot.panels.push_back(by_acceptance_panel(pairs));
}

}  // namespace outrider
