// See sim_grid.h.
#include "runtime/commands/bench/sim/sim_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "models/simulated/law.h"
#include "runtime/base/error.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/commands/bench/speedup_formulas.h"
#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

constexpr int32_t kMostDraftLen = 16;
constexpr int32_t kMostBestLen = 12;

void read_modes(const std::vector<std::string>& modes, SimGrid* grid) {
  const std::map<std::string, bool*> known = {
      {"off", &grid->off}, {"chain", &grid->chain}, {"cache", &grid->cache}};
  for (const std::string& name : modes) {
    if (!known.contains(name))
      throw Error(
          fmt::format("modes must be off, chain, cache with commas between, not '{}'", name));
    *known.at(name) = true;
  }
}

// Collects the workload_classes' keys of the two models.
class WorkloadClasses {
 public:
  int32_t add(const SimPair& pair, double step_ms) {
    if (num_ > 0) {
      for (std::string* list : {&alphas_, &steps_, &target_rows_, &draft_rows_}) *list += '/';
    }
    alphas_ += fmt::format("{}", pair.alpha);
    steps_ += fmt::format("{}", pair.cost * step_ms);
    target_rows_ += fmt::format("{}", pair.row_ms);
    draft_rows_ += fmt::format("{}", pair.row_ms * pair.cost);
    return num_++;
  }
  int32_t num() const { return num_; }
  std::string target(double step_ms) const {
    return fmt::format("sim:step_ms={},row_ms={},workload_classes={}", step_ms, target_rows_, num_);
  }
  std::string draft() const {
    return fmt::format("sim:step_ms={},alpha={},row_ms={},workload_classes={}",
                       steps_,
                       alphas_,
                       draft_rows_,
                       num_);
  }

 private:
  int32_t num_ = 0;
  std::string alphas_, steps_, target_rows_, draft_rows_;
};

void add_cells(const SimOptions& options, WorkloadClasses& workload_classes, SimGrid* grid) {
  for (const double alpha : options.alphas) {
    for (const double cost : options.costs) {
      const SimPair pair = {alpha, cost, 0};
      const int32_t workload_class = workload_classes.add(pair, options.step_ms);
      std::vector<int32_t> lens = options.draft_lens;
      if (lens.empty()) lens = {best_draft_len(alpha, cost, kMostBestLen)};
      for (const int32_t len : lens) grid->cells.push_back({pair, workload_class, len});
    }
  }
}

void add_cases(const SimOptions& options, WorkloadClasses& workload_classes, SimGrid* grid) {
  const auto add = [&](const char* name, SimPair pair, int32_t num_requests) {
    grid->cases.push_back({name, pair, workload_classes.add(pair, options.step_ms), num_requests});
  };
  add("acceptance 0", {0, 0.1, 0}, 1);
  add("draft as slow as the target, c = 1", {0.8, 1, 0}, 1);
  add("draft ten times slower than the target, c = 10", {0.8, 10, 0}, 1);
  add("256 requests, acceptance 0.3", {0.3, 0.1, options.many_row_ms}, 256);
  add("acceptance 0, 16 requests", {0, 0.1, options.many_row_ms}, 16);
}

}  // namespace

double sim_step_ms(const SimulatedSpec& spec,
                   int32_t workload_class,
                   int32_t num_rows,
                   int32_t position) {
  Batch batch;
  batch.tokens.assign(static_cast<size_t>(num_rows), kFirstSimulatedWord + workload_class);
  batch.positions.assign(batch.tokens.size(), position);
  batch.sequence_of_row.assign(batch.tokens.size(), 0);
  return simulated_step_ms(spec, batch);
}

SimGrid make_sim_grid(const SimOptions& options, RunConfig& config) {
  SimGrid grid;
  for (const std::string& given : options.pacing) {
    const size_t equals = given.find('=');
    if (equals == std::string::npos)
      throw Error(fmt::format("pacing: '{}' is not NAME=VALUE", given));
    set_pacing_constant(given.substr(0, equals), given.substr(equals + 1));
  }
  grid.requests = options.requests;
  read_modes(options.modes, &grid);
  WorkloadClasses workload_classes;
  // The first one, because the planner's probes of the target's steps are of that workload_class.
  grid.many = {0.8, 0.1, options.many_row_ms};
  grid.many_workload_class = workload_classes.add(grid.many, options.step_ms);
  add_cells(options, workload_classes, &grid);
  if (options.cases) add_cases(options, workload_classes, &grid);
  grid.num_workload_classes = workload_classes.num();
  if (grid.num_workload_classes > kMaxWorkloadClasses)
    throw Error(fmt::format("bench sim has {} pairs of models and at most {} fit a job",
                            grid.num_workload_classes,
                            kMaxWorkloadClasses));
  const auto keys = [](const std::string& text) { return text.empty() ? "" : "," + text; };
  config.model = workload_classes.target(options.step_ms) + keys(options.target_keys);
  config.speculative.model = workload_classes.draft() + keys(options.draft_keys);
  grid.target = parse_simulated(config.model);
  grid.draft = parse_simulated(config.speculative.model);
  int32_t most = *std::max_element(grid.requests.begin(), grid.requests.end());
  for (const SimCase& one : grid.cases) most = std::max(most, one.num_requests);
  config.max_num_seqs = std::max(config.max_num_seqs, most);
  config.max_num_queued_reqs = std::max(config.max_num_queued_reqs, most);
  config.max_num_batched_tokens = std::max(config.max_num_batched_tokens, most * 4);
  config.enable_prefix_caching = false;
  return grid;
}

std::vector<Option> sim_options(SimOptions* options) {
  return {
      number_option("step_ms", &options->step_ms, 0.01, 1e5, "the target's step, milliseconds"),
      number_list_option("alphas", &options->alphas, 0, 1, "acceptances"),
      number_list_option("costs", &options->costs, 0, 100, "of a draft step, in target steps"),
      word_list_option("modes", &options->modes, "of asynchronous drafting: off, chain, cache"),
      integer_list_option("draft_len",
                          &options->draft_lens,
                          0,
                          kMostDraftLen,
                          "of synchronous drafts; default: the best up to 12, by Leviathan"),
      integer_list_option("requests", &options->requests, 1, 1024, "how many requests at once"),
      number_option("many_row_ms",
                    &options->many_row_ms,
                    0,
                    1e5,
                    "what a row more costs the target when many requests run"),
      flag_option("cases", &options->cases, "also where speculation cannot pay"),
      text_option(
          "target_keys", &options->target_keys, "further keys of the target, as jitter=0.1"),
      text_option("draft_keys", &options->draft_keys, "further keys of the draft"),
      integer_option(
          "max_tokens", &options->max_tokens, 16, 4096, "tokens of a request of the grid"),
      integer_option("case_tokens", &options->case_tokens, 16, 4096, "of the cases' requests"),
      integer_option("sweep_tokens",
                     &options->sweep_tokens,
                     16,
                     4096,
                     "tokens of each of several requests, on average"),
      number_option("random_range_ratio",
                    &options->random_range_ratio,
                    0,
                    0.99,
                    "of several requests: lengths are drawn from length x (1 - ratio) to length x "
                    "(1 + ratio)"),
      integer_option("repeat", &options->num_repeats, 1, 1000, "times through all of it"),
      integer_option("seed", &options->seed, 0, INT32_MAX, "of the lengths and the noise"),
      number_option("temperature", &options->temperature, 0, 10, "0 = greedy"),
      list_option("pacing",
                  &options->pacing,
                  "NAME=VALUE: another value of one of docs/pacing.md's constants"),
      choice_option("clock",
                    &options->clock,
                    {"real", "virtual"},
                    "virtual: one process, computing costs no time, the same on every run"),
      number_option("message_us",
                    &options->message_us,
                    0,
                    1e6,
                    "with one process: what a message between ranks takes"),
  };
}

}  // namespace outrider
