// See prefix_bench.h.
#include "runtime/commands/bench/prefix/prefix_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/commands/bench/prefix/prefix_replay.h"
#include "runtime/commands/bench/report/bench_lists.h"

namespace outrider {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr int32_t kVocabSize = 1 << 16;

struct PrefixBenchOptions {
  std::string dataset_path;
  int32_t num_prompts = 0;
  double length_scale = 1.0 / 16;
  double time_scale = 1.0 / 16;
  double round_ms = 30;
  std::vector<double> memory_percents = {100, 50, 25, 10, 5};
};

std::vector<Option> prefix_options(PrefixBenchOptions* options) {
  return {
      path_option("dataset_path",
                  &options->dataset_path,
                  "JSON lines with timestamp, input_length, output_length, hash_ids (Mooncake)"),
      integer_option("num_prompts", &options->num_prompts, 0, INT32_MAX, "0 = all"),
      number_option("length_scale", &options->length_scale, 1e-3, 1, "of prompts and answers"),
      number_option("time_scale", &options->time_scale, 0, 1e3, "of the arrivals' times"),
      number_option("round_ms", &options->round_ms, 1e-3, 1e6, "virtual time of a round"),
      number_list_option("memory",
                         &options->memory_percents,
                         0.01,
                         100,
                         "KV memory in percent of what would hold every request at once")};
}

int64_t sum_of(const std::vector<int32_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

int32_t longest_of(const std::vector<ReplayRequest>& requests) {
  int64_t longest = 1;
  for (const ReplayRequest& request : requests) {
    longest = std::max(longest, std::ssize(request.prompt) + request.output_len);
  }
  return static_cast<int32_t>(longest);
}

std::vector<ReplayRequest> read_requests(const PrefixBenchOptions& options) {
  if (options.dataset_path.empty()) throw Error("bench prefix needs a trace: --dataset-path FILE");
  const std::string text = read_text_file(options.dataset_path, kMaxFileBytes);
  std::vector<TraceRow> rows = parse_mooncake_trace(text, options.dataset_path);
  if (options.num_prompts > 0 && static_cast<size_t>(options.num_prompts) < rows.size()) {
    rows.resize(static_cast<size_t>(options.num_prompts));
  }
  scale_trace(options.time_scale, options.length_scale, &rows);
  return replay_requests(rows, options.length_scale, kVocabSize);
}

PlannerConfig planner_for(const RunConfig& config, const std::vector<ReplayRequest>& requests) {
  PlannerConfig planner;
  planner.block_size = config.block_size;
  planner.max_num_seqs = config.max_num_seqs;
  planner.max_num_batched_tokens = config.max_num_batched_tokens;
  planner.max_model_len = longest_of(requests);
  planner.vocab_size = kVocabSize;
  return planner;
}

int run_prefix(const CommandLine& line) {
  PrefixBenchOptions options;
  BenchRun run("prefix", line, prefix_options(&options), kNoWords);
  // What a machine that serves such a trace would have.
  if (!run.is_given("max_num_seqs")) run.config().max_num_seqs = 256;
  if (!run.is_given("max_num_batched_tokens")) run.config().max_num_batched_tokens = 2048;
  const std::vector<ReplayRequest> requests = read_requests(options);
  const int32_t block_size = run.config().block_size;
  const int64_t num_reusable = sum_of(reusable_tokens(requests, block_size));
  const int32_t num_blocks_for_all = blocks_for_all(requests, block_size);
  int64_t num_prompt_tokens = 0;
  for (const ReplayRequest& request : requests) num_prompt_tokens += std::ssize(request.prompt);

  BenchReport report = run.new_report({});
  report.title =
      fmt::format("{} requests, {} prompt tokens, {} of them in {} reusable blocks of {}",
                  requests.size(),
                  num_prompt_tokens,
                  num_reusable,
                  num_reusable / block_size,
                  block_size);
  BenchTable table{.title = "",
                   .columns = {"KV blocks",
                               "reused tokens",
                               "of the reusable",
                               "running, mean",
                               "at most",
                               "preempted"},
                   .rows = {}};
  ReplaySettings settings{.planner = planner_for(run.config(), requests),
                          .round_s = options.round_ms / 1e3,
                          .execute = {}};
  for (const double percent : options.memory_percents) {
    settings.planner.num_blocks =
        std::max(1, static_cast<int32_t>(num_blocks_for_all * (percent / 100)));
    const ReplayResult result = replay(requests, settings);
    const double share = static_cast<double>(sum_of(result.num_cached)) /
                         std::max<double>(1, static_cast<double>(num_reusable));
    report.add_figure("reused / reusable", "", share, {"memory percent", percent});
    table.rows.push_back({fmt::format("{} ({}%)", settings.planner.num_blocks, percent),
                          fmt::format("{}", sum_of(result.num_cached)),
                          fmt::format("{:.2f}%", 100 * share),
                          fmt::format("{:.1f}", result.mean_running),
                          fmt::format("{}", result.most_running),
                          fmt::format("{}", result.num_preemptions)});
  }
  report.tables.push_back(std::move(table));
  report.notes.push_back(
      "reusable: leading blocks of a prompt that an earlier prompt has too, with endless memory "
      "and "
      "prompts computed as they arrive");
  run.finish(std::move(report));
  return 0;
}

}  // namespace

Command prefix_bench() {
  return {"prefix",
          "a trace's repeated beginnings: how many KV blocks are reused, no model",
          run_prefix};
}

}  // namespace outrider
