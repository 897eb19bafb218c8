// See serve_bench.h.
#include "runtime/commands/bench/serve/serve_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/serve/serve_report.h"
#include "runtime/commands/bench/serve/serve_requests.h"
#include "runtime/commands/front_end.h"
#include "runtime/ranks/job/signals.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInterrupted = 130;

ServeTarget target_of(const BenchRun& run,
                      const ServeBenchOptions& options,
                      const ServeSetup& setup) {
  ServeTarget target;
  const RunConfig& config = run.config();
  target.address = parse_server_address(options.base_url.empty() ? url_of(config.host, config.port)
                                                                 : options.base_url);
  target.endpoint = options.endpoint;
  target.headers = setup.headers;
  target.request_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(1e3 * options.request_timeout_s));
  std::string key = config.api_keys.empty() ? "" : config.api_keys.front();
  if (const char* given = std::getenv("OPENAI_API_KEY"); key.empty() && given != nullptr)
    key = given;
  if (!key.empty()) target.headers.emplace_back("Authorization", "Bearer " + key);
  return target;
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
        prompts_(options.tokenizer.empty()
                     ? nullptr
                     : Tokenizer::load(model_folder(options.tokenizer, Role::kTarget))),
        model_(ready_model(run, options, target_)),
        shapes_(load_shapes(options, model_.max_model_len)),
        body_{.model = model_.name,
              .chat = setup_.chat,
              .ignore_eos = options.ignore_eos,
              .continuous_usage = options.continuous_usage,
              .temperature = options.temperature,
              .extra_body = options.extra_body,
              .variant_body = {}} {}

  ServeFindings go() {
    warm_up();
    ServeFindings findings{.server = target_.address.origin + target_.address.path_prefix,
                           .model = body_.model,
                           .setup = setup_,
                           .burstiness = options_.burstiness,
                           .results = {{}},
                           .stopped = false};
    const bool compares = !options_.compare_body.empty();
    Progress progress("requests", static_cast<int64_t>(shapes_.size()) * (compares ? 2 : 1));
    if (compares) {
      findings.results = run_compared(&progress);
    } else {
      run_once(shapes_, 0, &progress, &findings.results[0]);
    }
    findings.stopped = stopped_;
    return findings;
  }

 private:
  // The first requests with other prompts; throws Error when one fails, since then all would.
  void warm_up() {
    if (options_.num_warmups == 0) return;
    std::vector<RequestShape> shapes;
    for (size_t i = 0; i < static_cast<size_t>(options_.num_warmups); ++i)
      shapes.push_back(shapes_[i % shapes_.size()]);
    RunSpec spec = spec_of(0);
    spec.arrivals.rate_per_s = INFINITY;
    for (const RequestRecord& record :
         run_requests(target_, plan_run(shapes, spec, body_, prompts_), 1, nullptr)) {
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

  RunSpec spec_of(uint64_t block) {
    const auto seed = static_cast<uint64_t>(options_.seed);
    return {.arrivals = {setup_.load.rate_per_s, options_.burstiness, mix_seed(seed, block)},
            .salt = mix_seed(seed, num_salts_++),
            .length_scale = options_.length_scale,
            .random_prefix_len = options_.dataset == "random" ? options_.random_prefix_len : 0};
  }

  // One run over these shapes; its records join the result.
  void run_once(std::span<const RequestShape> shapes,
                uint64_t block,
                Progress* progress,
                ServeResult* result) {
    BodySpec body = body_;
    if (result->variant == "compare") body.variant_body = options_.compare_body;
    const auto requests = plan_run(shapes, spec_of(block), body, prompts_);
    const SpeculationCount before = speculation_counters(target_);
    int32_t num_told = 0;
    const auto tell = [&](int32_t num_done) {
      return told(num_done - std::exchange(num_told, num_done), progress);
    };
    result->runs.push_back(run_requests(target_, requests, setup_.load.max_concurrency, tell));
    told(static_cast<int32_t>(requests.size()) - num_told, progress);
    result->counters.add(difference(before, speculation_counters(target_)));
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
  std::vector<ServeResult> run_compared(Progress* progress) {
    std::vector<ServeResult> results = {{"base", {}, {}}, {"compare", {}, {}}};
    const std::span<const RequestShape> all = shapes_;
    const size_t num_blocks = std::min(all.size(), static_cast<size_t>(options_.compare_blocks));
    for (size_t block = 0; block < num_blocks && !stopped_; ++block) {
      const size_t begin = all.size() * block / num_blocks;
      const auto shapes = all.subspan(begin, all.size() * (block + 1) / num_blocks - begin);
      run_once(shapes, block, progress, &results[block % 2]);
      run_once(shapes, block, progress, &results[1 - block % 2]);
    }
    return results;
  }

  const ServeBenchOptions& options_;
  const ServeSetup setup_;
  const ServeTarget target_;
  const PromptMaker prompts_;
  const AskedModel model_;
  const std::vector<RequestShape> shapes_;
  const BodySpec body_;
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
