// batch: a file of OpenAI batch lines through the same service as HTTP, by the parts that
// /v1/batches has too (http/batches). Lines are checked before the model is loaded, results are
// appended as they come, and --resume skips what is already answered.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>

#include "http/batches/batch_lines.h"
#include "http/batches/batch_run.h"
#include "http/batches/result_file.h"
#include "http/service.h"
#include "http/wire/api_error.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/front_end.h"
#include "runtime/ranks/job/serving_resources.h"
#include "runtime/ranks/job/signals.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostWorkers = 256;
constexpr int kExitSomeFailed = 3;
constexpr int kExitStopped = 75;  // EX_TEMPFAIL: run again with --resume
constexpr auto kProgressInterval = std::chrono::seconds(5);

struct BatchOptions {
  std::string input;
  std::string output;
  bool resume = false;
};

// The failure of the first line that has one; threads tell of theirs in any order.
class FirstFailure {
 public:
  void note(const BatchLine& line, const BatchResult& result) {
    if (result.status == 200) return;
    std::lock_guard lock(mutex_);
    if (number_ != 0 && number_ < line.number) return;
    number_ = line.number;
    sentence_ = fmt::format(
        "line {} ({}): {}", line.number, line.custom_id, error_message_of(result.error));
  }
  const std::string& sentence() const { return sentence_; }

 private:
  std::mutex mutex_;
  int number_ = 0;
  std::string sentence_;
};

void print_progress(const BatchRun& run, Clock::time_point begin, bool final) {
  const BatchRun::Counts counts = run.counts();
  const double elapsed_s = std::chrono::duration<double>(Clock::now() - begin).count();
  const double rate = elapsed_s > 0 ? static_cast<double>(counts.num_done) / elapsed_s : 0;
  const auto left = static_cast<double>(run.num_lines() - counts.num_done);
  fmt::print(stderr,
             "batch: {} of {} done, {} failed, {:.2f} requests/s, {:.1f} tokens/s{}\n",
             counts.num_done,
             run.num_lines(),
             counts.num_failed,
             rate,
             elapsed_s > 0 ? static_cast<double>(counts.num_tokens) / elapsed_s : 0,
             final || rate == 0 ? "" : fmt::format(", about {:.0f} s left", left / rate));
}

std::set<std::string> custom_ids(const std::vector<BatchLine>& lines) {
  std::set<std::string> ids;
  for (const BatchLine& line : lines) ids.insert(line.custom_id);
  return ids;
}

// What is left to do, known before the model is loaded.
struct BatchWork {
  std::vector<BatchLine> lines;
  std::unique_ptr<ResultFile> results;
};

BatchWork prepare_batch(const RunConfig& config, const BatchOptions& options) {
  const EngineInfo info = engine_info(config);
  const GenerationDefaults defaults = generation_defaults(config);
  const HttpOptions http = http_options(config);
  const ModelConfig model = model_config_of(config.model, Role::kTarget);
  refuse_same_file(options.input, options.output);
  BatchWork work;
  const AnswerFormats formats = choose_answer_formats({}, "auto", "auto");  // as good as any here
  work.lines =
      read_batch_lines(options.input, {info, defaults, http.call, model.eos_token_ids, formats});
  work.results =
      std::make_unique<ResultFile>(options.output, custom_ids(work.lines), options.resume);
  const size_t num_all = work.lines.size();
  const std::set<std::string>& answered = work.results->answered();
  std::erase_if(work.lines,
                [&](const BatchLine& line) { return answered.contains(line.custom_id); });
  if (options.resume)
    log_info("resuming: {} of {} lines are answered already", num_all - work.lines.size(), num_all);
  return work;
}

int batch(const FrontEndContext& context, BatchWork work) {
  if (work.lines.empty()) return 0;
  const HttpOptions http = http_options(context.config);
  OpenAiService service(context.engine, context.metrics, served_model(context), http);
  FirstFailure first_failure;
  BatchRun::Setup setup;
  setup.ask = [&](ServiceCall call) { return service.handle(std::move(call)); };
  setup.keep = [&](const BatchLine& line, const BatchResult& result) {
    first_failure.note(line, result);
    work.results->append(result);
  };
  setup.num_places = context.config.max_num_queued_reqs;
  setup.num_workers = std::min({2 * context.config.max_num_seqs, setup.num_places, kMostWorkers});
  BatchRun run(std::move(setup), std::move(work.lines));
  const Clock::time_point begin = Clock::now();
  Clock::time_point last = begin;
  const bool is_whole = run.run([&] {
    const bool stopped = wait_stop_signal(std::chrono::milliseconds(100)).has_value();
    if (stopped) log_warning("stopping: run again with --resume for the rest");
    if (Clock::now() - last >= kProgressInterval) {
      last = Clock::now();
      print_progress(run, begin, false);
    }
    return stopped ? BatchRun::Wish::kCut : BatchRun::Wish::kGo;
  });
  print_progress(run, begin, true);
  if (!first_failure.sentence().empty())
    fmt::print(stderr, "batch: the first failure is {}\n", first_failure.sentence());
  work.results->finish();
  if (!is_whole) return kExitStopped;
  return run.counts().num_failed > 0 ? kExitSomeFailed : 0;
}

}  // namespace

int batch_command(const CommandLine& line) {
  BatchOptions options;
  const Option input = with_aliases(path_option("input", &options.input, "batch lines (JSONL)"),
                                    {"-i", "--input-file"});
  const Option output = with_aliases(path_option("output", &options.output, "results (JSONL)"),
                                     {"-o", "--output-file"});
  const Option resume =
      flag_option("resume", &options.resume, "keep the results there are, answer the rest");
  const LoadedConfig loaded = load_config(line.arguments, {&input, &output, &resume});
  if (options.input.empty() || options.output.empty())
    throw Error("batch needs -i in.jsonl and -o out.jsonl");
  refuse_synthetic(loaded.config);
  BatchWork work;
  const auto prepare = [&] { work = prepare_batch(loaded.config, options); };
  const auto front_end = [&](const FrontEndContext& context) {
    return batch(context, std::move(work));
  };
  return run_job(loaded.config,
                 line.launch,
                 front_end,
                 {.before_load = prepare, .link = {}, .stop_code = kExitStopped});
}

}  // namespace outrider
