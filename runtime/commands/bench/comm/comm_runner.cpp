// See comm_runner.h.
#include "runtime/commands/bench/comm/comm_runner.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <optional>

#include "runtime/commands/bench/report/bench_progress.h"

namespace outrider {

std::vector<CommSamples> run_comm_cases(TargetGroup& group,
                                        const std::vector<CommCase>& cases,
                                        int32_t num_iterations,
                                        int32_t num_repeats) {
  std::vector<CommSamples> samples(cases.size());
  uint64_t turn = 0;
  const auto sample = [&](size_t i) {
    std::array<uint64_t, 1> wrong = {cases[i].num_wrong(++turn)};
    group.all_reduce_sum(wrong);  // also lets the ranks start together
    samples[i].num_wrong += wrong[0];
    const auto start = std::chrono::steady_clock::now();
    for (int32_t n = 0; n < num_iterations; ++n) cases[i].run();
    if (cases[i].finish) cases[i].finish();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    samples[i].us.push_back(taken.count() / num_iterations);
  };
  std::vector<std::function<void()>> variants;
  for (size_t i = 0; i < cases.size(); ++i) variants.emplace_back([&sample, i] { sample(i); });
  for (const auto& variant : variants) variant();  // warm-up; what it finds wrong counts
  for (CommSamples& of_case : samples) of_case.us.clear();
  std::optional<Progress> progress;
  if (group.rank() == 0) progress.emplace("comm", num_repeats);
  run_in_turns(num_repeats, variants, progress ? &*progress : nullptr);
  return samples;
}

uint64_t count_wrong(const std::vector<CommSamples>& samples) {
  uint64_t count = 0;
  for (const CommSamples& of_case : samples) count += of_case.num_wrong;
  return count;
}

BenchTable comm_table() {
  return {
      "",
      {"message", "of", "size", "count", "type", "redop", "time, us", "algbw", "busbw", "#wrong"},
      {}};
}

CommRow add_comm_row(const CommCase& one,
                     const CommSamples& samples,
                     BenchReport* report,
                     BenchTable* table) {
  const BenchX x = {one.x_name, static_cast<double>(one.x)};
  report->add_series(one.message, "us", samples.us, x);
  const Interval time =
      report->add_figure(one.message + ": time", "us", bootstrap_median(samples.us), x);
  const double bytes = static_cast<double>(one.num_bytes);
  report->add_figure(one.message + ": size", "bytes", bytes, x);
  const double algorithm =
      report->add_figure(one.message + ": algbw", "GB/s", bytes / time.value / 1e3, x);
  const double bus =
      report->add_figure(one.message + ": busbw", "GB/s", algorithm * one.bus_factor, x);
  report->add_figure(one.message + ": #wrong", "", static_cast<double>(samples.num_wrong), x);
  table->rows.push_back({one.message,
                         fmt::format("{} {}", one.x, one.x_name),
                         std::to_string(one.num_bytes),
                         std::to_string(one.count),
                         one.type,
                         one.redop,
                         interval_text(time, 1),
                         fmt::format("{:.3f}", algorithm),
                         fmt::format("{:.3f}", bus),
                         std::to_string(samples.num_wrong)});
  return {time, bus};
}

}  // namespace outrider
