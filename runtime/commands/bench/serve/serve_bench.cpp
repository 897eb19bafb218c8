// See serve_bench.h.
#include "runtime/commands/bench/serve/serve_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "http/wire/listener.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/serve/serve_report.h"
#include "runtime/commands/bench/serve/serve_requests.h"
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
  target.address = parse_server_address(options.base_url.empty()
                                            ? url_of(HttpOptions{.host = config.host}, config.port)
                                            : options.base_url);
  target.endpoint = setup.endpoint;
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
  check_extra_body(options.extra_body);
  if (options.ready_check_timeout_s > 0) wait_until_ready(target, options.ready_check_timeout_s);
  return asked_model(target, run.is_given("model") ? run.config().model : "");
}

class ServeBench {
 public:
  ServeBench(const BenchRun& run, const ServeBenchOptions& options, const ServeSetup& setup)
      : options_(options),
        setup_(setup),
        target_(target_of(run, options, setup)),
        prompts_(options.tokenizer.empty()
                     ? nullptr
                     : Tokenizer::load(model_folder(options.tokenizer, Role::kTarget))),
        model_(ready_model(run, options, target_)),
        shapes_(load_shapes(options, model_.max_model_len)) {}

  ServeFindings go() {
    warm_up();
    ServeFindings findings{.server = target_.address.origin + target_.address.path_prefix,
                           .model = model_.name,
                           .records = {},
                           .speculation = {}};
    const auto requests = plan(shapes_, setup_.rate_per_s);
    Progress progress("requests", static_cast<int64_t>(requests.size()));
    const SpeculationCounters before = speculation_counters(target_);
    int32_t num_told = 0;
    const auto tell = [&](int32_t num_done) {
      return told(num_done - std::exchange(num_told, num_done), &progress);
    };
    findings.records = run_requests(target_, requests, options_.max_concurrency, tell);
    findings.speculation = speculation_counters(target_);
    for (const auto& [name, count] : before) findings.speculation[name] -= count;
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
    const auto requests = plan(shapes, INFINITY);
    for (const RequestRecord& record : run_requests(target_, requests, 1, nullptr)) {
      if (record.failure.empty()) continue;
      const bool refuses_usage = record.error.find("continuous_usage") != std::string::npos;
      throw Error(fmt::format("the first request to {}{} failed with {}: {}{}",
                              target_.address.origin,
                              target_.endpoint,
                              record.failure,
                              record.error,
                              refuses_usage ? "; give --no-continuous-usage" : ""));
    }
  }

  std::vector<PlannedRequest> plan(const std::vector<RequestShape>& shapes, double rate_per_s) {
    const uint64_t salt = mix_seed(static_cast<uint64_t>(options_.seed), num_salts_++);
    const RunSpec run{options_, model_.name, setup_.chat, rate_per_s, salt};
    return plan_run(shapes, run, prompts_);
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

  const ServeBenchOptions& options_;
  const ServeSetup& setup_;
  const ServeTarget target_;
  const PromptMaker prompts_;
  const AskedModel model_;
  const std::vector<RequestShape> shapes_;
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
  const ServeSetup setup =
      understand_serve_options(options, run.is_given("request_rate"), run.positional());
  const ServeFindings findings = ServeBench(run, options, setup).go();
  fill_serve_report(options, setup, findings, &report);
  run.finish(std::move(report));
  const auto& records = findings.records;
  if (std::any_of(records.begin(), records.end(), [](const RequestRecord& record) {
        return record.failure.empty();
      })) {
    return 0;
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
