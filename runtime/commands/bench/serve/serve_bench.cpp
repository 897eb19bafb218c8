// See serve_bench.h.
#include "runtime/commands/bench/serve/serve_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/rng.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/serve/serve_options.h"
#include "runtime/commands/bench/serve/serve_plan.h"
#include "runtime/commands/bench/serve/serve_report.h"
#include "runtime/commands/bench/serve/serve_runner.h"
#include "runtime/commands/bench/serve/serve_server.h"
#include "runtime/commands/front_end.h"
#include "runtime/ranks/job/signals.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInterrupted = 130;

std::string server_url(const BenchRun& run, const ServeBenchOptions& options) {
  if (!options.base_url.empty()) return options.base_url;
  return url_of(run.config().host, run.config().port);
}

ServeTarget target_of(const BenchRun& run,
                      const ServeBenchOptions& options,
                      const ServeSetup& setup) {
  ServeTarget target;
  target.address = parse_server_address(server_url(run, options));
  target.endpoint = options.endpoint;
  target.headers = setup.headers;
  target.request_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(1e3 * options.request_timeout_s));
  std::string key = run.config().api_keys.empty() ? "" : run.config().api_keys.front();
  if (const char* given = std::getenv("OPENAI_API_KEY"); key.empty() && given != nullptr)
    key = given;
  if (!key.empty()) target.headers.emplace_back("Authorization", "Bearer " + key);
  return target;
}

PromptMaker prompt_maker(const ServeBenchOptions& options) {
  PromptSource source;
  source.form = options.prompt_form == "ids" ? PromptForm::kIds : PromptForm::kText;
  source.vocab_size = options.vocab_size;
  if (!options.tokenizer.empty())
    source.tokenizer = Tokenizer::load(model_folder(options.tokenizer, Role::kTarget));
  return PromptMaker(std::move(source));
}

AskedModel ready_model(const BenchRun& run,
                       const ServeBenchOptions& options,
                       const ServeTarget& target) {
  check_body_option(options.extra_body, "extra_body");
  check_body_option(options.compare_body, "compare_body");
  if (options.ready_check_timeout_s > 0) wait_until_ready(target, options.ready_check_timeout_s);
  return asked_model(target, run.is_given("model") ? run.config().model : "");
}

// Everything that the runs of one command share, and the order they come in.
class ServeBench {
 public:
  ServeBench(const BenchRun& run, const ServeBenchOptions& options)
      : options_(options),
        setup_(understand_serve_options(options, run.is_given("request_rate"), run.positional())),
        target_(target_of(run, options, setup_)),
        prompts_(prompt_maker(options)),
        model_(ready_model(run, options, target_)),
        shapes_(load_shapes(options, setup_, model_.max_model_len)) {
    if (shapes_.empty()) throw Error("there are no requests to send within the duration");
    body_.model = model_.name;
    body_.chat = setup_.chat;
    body_.ignore_eos = options.ignore_eos;
    body_.continuous_usage = options.continuous_usage;
    body_.temperature = options.temperature;
    body_.extra_body = options.extra_body;
  }

  ServeFindings go() {
    ServeFindings findings{.server = target_.address.origin + target_.address.path_prefix,
                           .model = body_.model,
                           .setup = setup_,
                           .burstiness = options_.burstiness,
                           .results = {},
                           .stopped = false};
    warm_up();
    const bool compares = !options_.compare_body.empty();
    const auto num_runs = static_cast<int64_t>(setup_.loads.size()) * (compares ? 2 : 1);
    Progress progress("requests", num_runs * static_cast<int64_t>(shapes_.size()));
    for (const ServeLoad& load : setup_.loads) {
      if (stopped_) break;
      if (compares) {
        run_compared(load, &progress, &findings.results);
      } else {
        ServeResult result{load, "", {}, {}};
        run_once(shapes_, load, 0, &progress, &result);
        findings.results.push_back(std::move(result));
      }
    }
    findings.stopped = stopped_;
    return findings;
  }

 private:
  uint64_t next_salt() { return mix_seed(static_cast<uint64_t>(options_.seed), num_salts_++); }

  // The first requests with other prompts; throws Error when one fails, since then all would.
  void warm_up() {
    if (options_.num_warmups == 0) return;
    std::vector<RequestShape> shapes;
    for (int32_t i = 0; i < options_.num_warmups; ++i)
      shapes.push_back(shapes_[static_cast<size_t>(i) % shapes_.size()]);
    RunSpec spec = spec_of({}, 0);
    const auto records = run_requests(
        target_, plan_run(shapes, spec, body_, prompts_), {.max_concurrency = 1}, nullptr);
    for (const RequestRecord& record : records) {
      if (record.failure == ServeFailure::kNone) continue;
      const bool refuses_usage = record.error.find("continuous_usage") != std::string::npos;
      throw Error(fmt::format("the first request to {}{} failed with {}: {}{}",
                              target_.address.origin,
                              target_.endpoint,
                              failure_name(record),
                              record.error,
                              refuses_usage ? "; give --no-continuous-usage" : ""));
    }
  }

  RunSpec spec_of(const ServeLoad& load, uint64_t block) {
    const bool is_random = setup_.dataset == ServeDataset::kRandom;
    return {.load = load,
            .burstiness = options_.burstiness,
            .seed = mix_seed(static_cast<uint64_t>(options_.seed), block),
            .salt = next_salt(),
            .length_scale = options_.length_scale,
            .random_prefix_len = is_random ? options_.random_prefix_len : 0};
  }

  // One run over these shapes; its records join the result.
  void run_once(std::span<const RequestShape> shapes,
                const ServeLoad& load,
                uint64_t block,
                Progress* progress,
                ServeResult* result) {
    BodySpec body = body_;
    if (result->variant == "compare") body.variant_body = options_.compare_body;
    const std::vector<PlannedRequest> requests =
        plan_run(shapes, spec_of(load, block), body, prompts_);
    RunLimits limits{.max_concurrency = load.max_concurrency};
    if (options_.duration_s > 0) limits.send_until_s = options_.duration_s;
    const SpeculationCount before = speculation_counters(target_);
    int32_t num_told = 0;
    const auto tell = [&](const RunProgress& now) {
      return told(now.num_done - std::exchange(num_told, now.num_done), progress);
    };
    result->runs.push_back(run_requests(target_, requests, limits, tell));
    told(static_cast<int32_t>(requests.size()) - num_told, progress);
    add_difference(before, speculation_counters(target_), &result->counters);
  }

  // False after a signal. A second one ends the program at once.
  bool told(int64_t num_done, Progress* progress) {
    try {
      progress->advance(num_done);
    } catch (const Error&) {
      if (stopped_) std::_Exit(kExitInterrupted);
      stopped_ = true;
      fmt::print(stderr, "stopping: waiting for the requests in flight\n");
    }
    return !stopped_;
  }

  // Each block of requests runs to its end with and without the compared members; who comes first
  // changes from block to block.
  void run_compared(const ServeLoad& load, Progress* progress, std::vector<ServeResult>* results) {
    ServeResult base{load, "base", {}, {}};
    ServeResult compare{load, "compare", {}, {}};
    const std::span<const RequestShape> all = shapes_;
    const size_t num_blocks =
        std::min(shapes_.size(), static_cast<size_t>(options_.compare_blocks));
    for (size_t block = 0; block < num_blocks && !stopped_; ++block) {
      const size_t begin = all.size() * block / num_blocks;
      const size_t end = all.size() * (block + 1) / num_blocks;
      const auto shapes = all.subspan(begin, end - begin);
      run_once(shapes, load, block, progress, block % 2 == 0 ? &base : &compare);
      run_once(shapes, load, block, progress, block % 2 == 0 ? &compare : &base);
    }
    results->push_back(std::move(base));
    results->push_back(std::move(compare));
  }

  const ServeBenchOptions& options_;
  const ServeSetup setup_;
  const ServeTarget target_;
  const PromptMaker prompts_;
  const AskedModel model_;
  const std::vector<RequestShape> shapes_;
  BodySpec body_;
  uint64_t num_salts_ = 0;
  bool stopped_ = false;
};

int run_serve(const CommandLine& line) {
  ServeBenchOptions options;
  // The words that follow --goodput's first.
  BenchRun run(
      "serve", line, serve_bench_options(&options), {.most = SIZE_MAX, .are_model = false});
  BenchReport report = run.new_report({});
  block_stop_signals();
  ServeBench bench(run, options);
  const ServeFindings findings = bench.go();
  fill_serve_report(findings, &report);
  run.finish(std::move(report));
  for (const ServeResult& result : findings.results) {
    for (const auto& records : result.runs) {
      for (const RequestRecord& record : records) {
        if (record.failure == ServeFailure::kNone) return 0;
      }
    }
  }
  fmt::print(stderr, "outrider: no request succeeded\n");
  return kExitFailed;
}

}  // namespace

Command serve_bench() {
  return {
      "serve", "open-loop load on a running server, ours or any OpenAI-compatible one", run_serve};
}

}  // namespace outrider
