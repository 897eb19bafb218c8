// verify: the user's own check that speculation changes nothing: distributions on toy models and on
// the loaded pair, texts token by token, and rules broken on purpose that the same tests must
// catch. A front end of an ordinary job, in one process or under mpirun.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "runtime/base/error.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/bench/report/bench_report.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/front_end.h"
#include "runtime/commands/verify/verify_pair.h"
#include "runtime/commands/verify/verify_toy.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kInFlight = 64;
constexpr double kDraftPatienceS = 2;
constexpr int32_t kDraftLen = 4;
constexpr int32_t kContextTokensPerSample = 4;
constexpr int32_t kMostContextTokens = 1000000000;
constexpr int32_t kQuickToySamples = 15000;
constexpr int32_t kQuickPairSamples = 2000;
constexpr int32_t kQuickContextTokens = 8000;
constexpr int32_t kQuickTexts = 6;

struct VerifyOptions {
  bool quick = false;
  int32_t samples = 0;  // 0 = the default of quick or not
  int32_t pair_samples = 0;
  std::string prompt = "The king said";
  std::string broken_rule = "none";
  std::string json_file;
};

LawFault fault_from_name(const std::string& name) {
  if (name == "shared_noise") return LawFault::kDraftSharesResidualNoise;
  if (name == "position_keyed_noise") return LawFault::kRoundLeftOut;
  if (name == "off_by_one_bonus") return LawFault::kBonusFromWrongRow;
  if (name == "accept_by_target_prob") return LawFault::kAcceptByTargetProb;
  if (name == "bonus_draft_by_value") return LawFault::kBonusDraftByValue;
  if (name == "mask_without_draft") return LawFault::kMaskWithoutDraft;
  if (name == "bonus_where_draft_rejected") return LawFault::kBonusWhereDraftRejected;
  return LawFault::kNone;
}

// What verify needs where the user did not say otherwise: a draft, and many sequences at once.
void set_defaults(LoadedConfig& loaded) {
  RunConfig& config = loaded.config;
  if (config.model == "embedded" && config.speculative.model.empty() &&
      config.speculative.method == "auto") {
    config.speculative.model = "embedded";
  }
  if (!loaded.is_given("max_num_seqs")) config.max_num_seqs = kInFlight;
  // Lengths are swept up to this one; the planner's own choice would leave out what does not pay.
  if (config.speculative.num_speculative_tokens == kAutoDraftLen)
    config.speculative.num_speculative_tokens = kDraftLen;
  // The same for asynchronous drafting.
  if (config.speculative.async_drafting == "auto") config.speculative.async_drafting = "cache";
  // Rounds without a draft say nothing about drafts, and a busy machine would have many.
  config.speculative.draft_patience_s = kDraftPatienceS;
}

int verify_job(const FrontEndContext& context, const VerifyOptions& options) {
  const auto begin = Clock::now();
  const auto progress = [&](const std::string& line) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fmt::print(stderr, "verify {:5.1f} s: {}\n", seconds, line);
  };
  const EngineInfo& info = context.engine.info();
  if (info.draft.empty()) {
    throw Error(
        "verify needs something to verify: --speculative-config.model DIR, or "
        "--speculative-config.method ngram");
  }
  VerifyReport report;
  report.model = info.served_model_name;
  report.draft = info.draft;
  report.num_target_ranks = info.num_target_ranks;
  const auto add = [&](std::vector<CheckRow> rows) {
    std::move(rows.begin(), rows.end(), std::back_inserter(report.rows));
  };
  ToyChecks toy;
  if (options.quick) toy.num_samples = kQuickToySamples;
  if (options.samples > 0) toy.num_samples = options.samples;
  toy.broken_rule = fault_from_name(options.broken_rule);
  PairChecks pair;
  pair.prompt = options.prompt;
  pair.progress = progress;
  if (options.quick) pair.num_samples = kQuickPairSamples;
  if (options.quick) pair.num_context_tokens = kQuickContextTokens;
  if (options.quick) pair.num_texts = kQuickTexts;
  if (options.pair_samples > 0) {
    pair.num_samples = options.pair_samples;
    pair.num_context_tokens = static_cast<int32_t>(std::min<int64_t>(
        int64_t{kContextTokensPerSample} * options.pair_samples, kMostContextTokens));
  }
  add(run_toy_checks(toy, progress));
  add(run_law_checks(context, pair));
  add(run_context_checks(context, pair));
  add(run_text_checks(context, pair));
  std::stable_partition(report.rows.begin(), report.rows.end(), [](const CheckRow& row) {
    return row.kind != CheckKind::kControl;
  });
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  print_report(report, stdout);
  std::fflush(stdout);
  if (!options.json_file.empty()) write_report_json(report, options.json_file);
  return report.exit_code();
}

}  // namespace

int verify_command(const CommandLine& line) {
  VerifyOptions options;
  const std::vector<Option> own = {
      flag_option("quick", &options.quick, "fewer samples, so that less is found; see power"),
      integer_option(
          "samples", &options.samples, 0, 100000000, "of each toy law; 0 = 30000, quick 15000"),
      integer_option(
          "pair_samples",
          &options.pair_samples,
          0,
          100000000,
          "answers of the pair for each mode; 0 = 6000, quick 2000. Long texts then have "
          "four times as many tokens"),
      text_option("prompt", &options.prompt, "of the pair's distribution tests"),
      choice_option("break",
                    &options.broken_rule,
                    {"none",
                     "shared_noise",
                     "position_keyed_noise",
                     "off_by_one_bonus",
                     "accept_by_target_prob",
                     "bonus_draft_by_value",
                     "mask_without_draft",
                     "bonus_where_draft_rejected"},
                    "breaks a rule in the toy checks, to see verify fail"),
      path_option("json", &options.json_file, "also write the result as JSON to this file"),
  };
  LoadedConfig loaded = load_config(line.arguments, option_rows(own));
  check_outputs({.json_file = options.json_file, .csv_file = {}});
  set_defaults(loaded);
  refuse_synthetic(loaded.config);
  return run_job(loaded.config, line.launch, [&](const FrontEndContext& context) {
    return verify_job(context, options);
  });
}

}  // namespace outrider
