// bench decode: what speculation gains on given prompts, beside what the formula of Leviathan et
// al. (Theorem 3.8) predicts from the measured acceptance and cost ratio. A front end on rank 0.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/commands/bench/decode/decode_measure.h"
#include "runtime/commands/bench/decode/decode_report.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/ranks/job/job.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

std::vector<Option> decode_options(DecodeOptions* options) {
  return {
      path_option("prompts",
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
      integer_option("seed",
                     &options->seed,
                     0,
                     INT32_MAX,
                     "makes sampled text the same with speculation on and off; default: none"),
      integer_list_option("draft_lens",
                          &options->draft_lens,
                          0,
                          64,
                          "draft lengths in turns, as in 0,1,2,4,8; default: off and the server's"),
      number_list_option("epsilons",
                         &options->epsilons,
                         0,
                         1,
                         "for a synth: model, several of them (a job each): acceptance falls as "
                         "epsilon grows"),
      word_list_option("drafts", &options->drafts, "several draft models, a job each"),
  };
}

// The configurations of the jobs.
std::vector<RunConfig> job_configs(const RunConfig& config, const DecodeOptions& options) {
  std::vector<RunConfig> configs = {config};
  if (!options.epsilons.empty()) {
    if (!is_synthetic(config.model))
      throw Error(fmt::format("epsilons are for synth: models, not for '{}'", config.model));
    configs.clear();
    for (double epsilon : options.epsilons) {
      configs.push_back(config);
      const std::string shape = config.model.substr(0, config.model.find('?'));
      configs.back().model = fmt::format("{}?epsilon={}", shape, epsilon);
    }
  }
  if (options.drafts.empty()) return configs;
  std::vector<RunConfig> with_drafts;
  for (const RunConfig& one : configs) {
    for (const std::string& draft : options.drafts) {
      with_drafts.push_back(one);
      with_drafts.back().speculative.model = draft;
    }
  }
  return with_drafts;
}

// 0 first, ascending, each once; and the server must allow the longest.
void settle_draft_lens(DecodeOptions* options, RunConfig* config) {
  std::vector<int32_t>& lens = options->draft_lens;
  if (lens.empty()) return;
  lens.push_back(0);
  std::sort(lens.begin(), lens.end());
  lens.erase(std::unique(lens.begin(), lens.end()), lens.end());
  config->speculative.num_speculative_tokens = std::max(1, lens.back());
}

}  // namespace

int decode_bench(const CommandLine& line) {
  constexpr int32_t kDraftLen = 4;
  DecodeOptions options;
  BenchRun run("decode", line, decode_options(&options));
  // The same prompts with speculation off and on: the second must not profit from the first.
  if (!run.is_given("enable_prefix_caching")) run.config().enable_prefix_caching = false;
  // Fixed lengths are compared, unless the planner's choice is asked for.
  if (!run.is_given("speculative_config.num_speculative_tokens"))
    run.config().speculative.num_speculative_tokens = kDraftLen;
  settle_draft_lens(&options, &run.config());
  const std::vector<RunConfig> configs = job_configs(run.config(), options);
  if (configs.size() > 1 && launched_by_mpi())
    throw Error("several pairs are several jobs: run them in one process, or one mpirun each");
  std::optional<BenchReport> report;
  std::optional<Progress> progress;
  std::vector<DecodeMeasurement> found;
  for (const RunConfig& config : configs) {
    const int code = run_job(config, line.launch, [&](const FrontEndContext& context) {
      if (!report) report = run.new_report(context.topology);
      if (!progress)
        progress.emplace("decode", options.num_repeats * static_cast<int64_t>(configs.size()));
      found.push_back(measure_decode(context, options, &*progress));
      if (found.size() < configs.size()) return 0;
      // Here, since the process may not outlive the end of an MPI job for long.
      progress.reset();
      report_decode(found, options, &*report);
      run.finish(std::move(*report));
      return 0;
    });
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace outrider
