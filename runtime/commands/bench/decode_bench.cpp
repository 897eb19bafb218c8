// See decode_bench.h.
#include "runtime/commands/bench/decode_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/base/error.h"
#include "runtime/commands/bench/bench_requests.h"
#include "runtime/commands/bench/theory_formulas.h"
#include "runtime/ranks/job.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

struct DecodeBenchOptions {
  std::string prompts_file;  // empty = a few of our own
  int32_t num_prompts = 8;
  int32_t max_tokens = 128;
  int32_t concurrency = 1;
  int32_t num_repeats = 3;
  double temperature = 0;
  std::string seed;
};

struct Pass {
  double decode_s = 0;
  int64_t num_decoded = 0;
  std::vector<BenchAnswer> answers;
  double tokens_per_s() const {
    return decode_s > 0 ? static_cast<double>(num_decoded) / decode_s : 0;
  }
};

struct Summary {
  int draft_len = 0;
  std::vector<double> off_tokens_per_s;
  std::vector<double> on_tokens_per_s;
  std::vector<int64_t> drafted;  // by position
  std::vector<int64_t> examined;
  std::vector<int64_t> accepted;
  int64_t num_rounds = 0;
  int64_t num_tokens = 0;
  int num_answers = 0;
  int num_same_text = 0;
  double alpha = 0;
  double tokens_per_round = 0;
  double cost_ratio = 0;
  double plain_round_s = 0;
  double verify_round_s = 0;
  double draft_step_s = 0;
};

Request make_request(const FrontEndContext& context,
                     const DecodeBenchOptions& options,
                     const std::string& prompt,
                     bool speculate) {
  Request request = bench_request(context, prompt, options.max_tokens);
  request.params.temperature = static_cast<float>(options.temperature);
  request.params.max_draft_len = speculate ? -1 : 0;
  if (!options.seed.empty()) {
    request.params.seed = std::strtoull(options.seed.c_str(), nullptr, 10);
    request.params.noise_seed = *request.params.seed;
  } else {
    std::random_device device;
    request.params.noise_seed = (static_cast<uint64_t>(device()) << 32) | device();
  }
  return request;
}

Pass run_pass(const FrontEndContext& context,
              const DecodeBenchOptions& options,
              const std::vector<std::string>& prompts,
              bool speculate) {
  Pass pass;
  const auto concurrency = static_cast<size_t>(options.concurrency);
  for (size_t begin = 0; begin < prompts.size(); begin += concurrency) {
    const size_t end = std::min(prompts.size(), begin + concurrency);
    std::vector<std::shared_ptr<ResultStream>> streams;
    const auto wave_begin = Clock::now();
    for (size_t i = begin; i < end; ++i) {
      Request request = make_request(context, options, prompts[i], speculate);
      streams.push_back(request.stream);
      submit_bench_request(context, std::move(request));
    }
    for (const auto& stream : streams) {
      pass.answers.push_back(collect_bench_answer(*stream));
      pass.num_decoded += pass.answers.back().num_decoded;
      // One at a time: the decode part alone. Together: the wave's wall clock, since decodes
      // overlap.
      if (concurrency == 1) pass.decode_s += pass.answers.back().decode_s;
    }
    if (concurrency > 1)
      pass.decode_s += std::chrono::duration<double>(Clock::now() - wave_begin).count();
  }
  return pass;
}

void add_to(std::vector<int64_t>* sums, size_t position, int64_t value) {
  if (sums->size() <= position) sums->resize(position + 1);
  (*sums)[position] += value;
}

void take_in(const Pass& off, const Pass& on, Summary* summary) {
  summary->off_tokens_per_s.push_back(off.tokens_per_s());
  summary->on_tokens_per_s.push_back(on.tokens_per_s());
  for (size_t i = 0; i < on.answers.size(); ++i) {
    const SpeculationStats& stats = on.answers[i].stats;
    ++summary->num_answers;
    summary->num_same_text += on.answers[i].tokens == off.answers[i].tokens ? 1 : 0;
    summary->num_rounds += stats.num_rounds;
    summary->num_tokens += static_cast<int64_t>(on.answers[i].tokens.size());
    for (size_t j = 0; j < stats.drafted_per_position.size(); ++j) {
      const int64_t reached = j == 0 ? stats.num_spec_rounds : stats.accepted_per_position[j - 1];
      add_to(&summary->drafted, j, stats.drafted_per_position[j]);
      add_to(&summary->examined, j, std::min<int64_t>(reached, stats.drafted_per_position[j]));
      add_to(&summary->accepted, j, stats.accepted_per_position[j]);
    }
  }
}

void finish(const FrontEndContext& context, Summary* summary) {
  int64_t examined = 0;
  int64_t accepted = 0;
  for (int64_t n : summary->examined) examined += n;
  for (int64_t n : summary->accepted) accepted += n;
  summary->alpha = examined > 0 ? static_cast<double>(accepted) / static_cast<double>(examined) : 0;
  summary->tokens_per_round = summary->num_rounds > 0 ? static_cast<double>(summary->num_tokens) /
                                                            static_cast<double>(summary->num_rounds)
                                                      : 0;
  const RoundTimes times = context.engine.round_times();
  summary->draft_len = context.engine.info().num_speculative_tokens;
  summary->plain_round_s = times.plain_round_s;
  summary->verify_round_s = times.verify_round_s;
  summary->draft_step_s = times.draft_step_s;
  summary->cost_ratio = times.plain_round_s > 0 ? times.draft_step_s / times.plain_round_s : 0;
}

double measured_speedup(const Summary& summary) {
  std::vector<double> ratios;
  for (size_t i = 0; i < summary.on_tokens_per_s.size(); ++i) {
    if (summary.off_tokens_per_s[i] > 0)
      ratios.push_back(summary.on_tokens_per_s[i] / summary.off_tokens_per_s[i]);
  }
  return median(ratios);
}

void print_table(const FrontEndContext& context,
                 const DecodeBenchOptions& options,
                 const Summary& summary) {
  const EngineInfo& info = context.engine.info();
  fmt::print(
      "model {}, draft {}, {} target rank(s), draft length {}, temperature {}, {} in flight\n\n",
      info.served_model_name,
      info.draft.empty() ? "none" : info.draft,
      info.num_target_ranks,
      summary.draft_len,
      options.temperature,
      options.concurrency);
  fmt::print("{:<44} {:>10.1f}\n",
             "tokens/s, speculation off (median of passes)",
             median(summary.off_tokens_per_s));
  fmt::print("{:<44} {:>10.1f}\n", "tokens/s, speculation on", median(summary.on_tokens_per_s));
  fmt::print("{:<44} {:>10.3f}\n", "acceptance alpha (accepted / examined)", summary.alpha);
  for (size_t i = 0; i < summary.examined.size(); ++i) {
    const double share = summary.examined[i] > 0 ? static_cast<double>(summary.accepted[i]) /
                                                       static_cast<double>(summary.examined[i])
                                                 : 0;
    fmt::print("  position {:<33} {:>10.3f}   {} of {} examined\n",
               i + 1,
               share,
               summary.accepted[i],
               summary.examined[i]);
  }
  fmt::print("{:<44} {:>10.2f}\n", "tokens per round", summary.tokens_per_round);
  fmt::print("{:<44} {:>10.3f}   draft step {:.3f} ms, target step {:.3f} ms\n",
             "cost ratio c",
             summary.cost_ratio,
             1e3 * summary.draft_step_s,
             1e3 * summary.plain_round_s);
  fmt::print("{:<44} {:>10.2f}   step of {:.3f} ms\n",
             "verify step / plain step",
             summary.plain_round_s > 0 ? summary.verify_round_s / summary.plain_round_s : 0,
             1e3 * summary.verify_round_s);
  fmt::print("{:<44} {:>10.2f}\n",
             "speed-up predicted (verify as dear as a step)",
             predicted_speedup(summary.alpha, summary.cost_ratio, summary.draft_len));
  fmt::print(
      "{:<44} {:>10.2f}\n", "speed-up measured (median of on/off)", measured_speedup(summary));
  fmt::print("{:<44} {:>6} of {}\n",
             "answers with the same tokens on and off",
             summary.num_same_text,
             summary.num_answers);
}

std::string details_of(const FrontEndContext& context,
                       const DecodeBenchOptions& options,
                       const Summary& summary) {
  const EngineInfo& info = context.engine.info();
  const Json json = {{"model", info.served_model_name},
                     {"draft", info.draft},
                     {"num_target_ranks", info.num_target_ranks},
                     {"num_speculative_tokens", summary.draft_len},
                     {"temperature", options.temperature},
                     {"concurrency", options.concurrency},
                     {"tokens_per_s_off", summary.off_tokens_per_s},
                     {"tokens_per_s_on", summary.on_tokens_per_s},
                     {"acceptance", summary.alpha},
                     {"drafted_per_position", summary.drafted},
                     {"examined_per_position", summary.examined},
                     {"accepted_per_position", summary.accepted},
                     {"tokens_per_round", summary.tokens_per_round},
                     {"cost_ratio", summary.cost_ratio},
                     {"draft_step_s", summary.draft_step_s},
                     {"target_step_s", summary.plain_round_s},
                     {"verify_step_s", summary.verify_round_s},
                     {"speedup_predicted",
                      predicted_speedup(summary.alpha, summary.cost_ratio, summary.draft_len)},
                     {"speedup_measured", measured_speedup(summary)},
                     {"num_same_text", summary.num_same_text},
                     {"num_answers", summary.num_answers}};
  return json.dump();
}

std::vector<Option> decode_options(DecodeBenchOptions* options) {
  return {
      text_option("prompts",
                  &options->prompts_file,
                  "a text file of one prompt a line, or JSON lines with prompt or turns"),
      integer_option("num_prompts", &options->num_prompts, 1, 100000, "how many of them"),
      integer_option("max_tokens", &options->max_tokens, 1, 100000, "tokens per answer"),
      integer_option("concurrency", &options->concurrency, 1, 4096, "requests in flight"),
      integer_option("repeat",
                     &options->num_repeats,
                     1,
                     1000,
                     "passes over the prompts, speculation off and on in turns"),
      number_option("temperature", &options->temperature, 0, 10, "0 = greedy"),
      text_option("seed",
                  &options->seed,
                  "a seed makes sampled text the same with speculation on and off; empty = none"),
  };
}

int measure(const BenchRun& run,
            const FrontEndContext& context,
            const DecodeBenchOptions& options) {
  BenchReport report = run.new_report(context.topology);
  const std::vector<std::string> prompts =
      read_bench_prompts(options.prompts_file, options.num_prompts);
  Summary summary;
  run_pass(context, options, {prompts[0]}, false);  // warm-up
  run_pass(context, options, {prompts[0]}, true);
  for (int32_t repeat = 0; repeat < options.num_repeats; ++repeat) {
    const Pass off = run_pass(context, options, prompts, false);
    const Pass on = run_pass(context, options, prompts, true);
    take_in(off, on, &summary);
    fmt::print(stderr,
               "pass {} of {}: off {:.1f}, on {:.1f} tokens/s\n",
               repeat + 1,
               options.num_repeats,
               off.tokens_per_s(),
               on.tokens_per_s());
  }
  finish(context, &summary);
  print_table(context, options, summary);
  report.details = details_of(context, options, summary);
  report.add_series("speculation off", "tokens/s", summary.off_tokens_per_s);
  report.add_series("speculation on", "tokens/s", summary.on_tokens_per_s);
  run.finish(std::move(report));
  return 0;
}

int run_decode(const CommandLine& line) {
  DecodeBenchOptions options;
  BenchRun run("decode", line, decode_options(&options));
  // The same prompts with speculation off and on: the second must not profit from the first.
  if (!run.is_given("enable_prefix_caching")) run.config().enable_prefix_caching = false;
  return run_job(run.config(), line.argc, line.argv, [&](const FrontEndContext& context) {
    return measure(run, context, options);
  });
}

std::string decode_help() {
  DecodeBenchOptions options;
  return bench_options_help(decode_options(&options));
}

}  // namespace

BenchKind decode_bench() {
  return {"decode", "the same prompts with speculation off and on", run_decode, decode_help};
}

}  // namespace outrider
