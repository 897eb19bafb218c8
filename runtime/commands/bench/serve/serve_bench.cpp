// bench serve: an open-loop load generator for a running server, ours or any that speaks OpenAI's
// API. Not a job: one process that opens connections.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "http/wire/listener.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/serve/serve_report.h"
#include "runtime/commands/bench/serve/serve_requests.h"
#include "runtime/ranks/job/signals.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInterrupted = 130;

ServeTarget target_of(const RunConfig& config,
                      const ServeBenchOptions& options,
                      const ServeSetup& setup) {
  ServeTarget target = setup.target;
  target.address = parse_server_address(options.base_url.empty()
                                            ? url_of(HttpOptions{.host = config.host}, config.port)
                                            : options.base_url);
  std::string key = config.api_keys.empty() ? "" : config.api_keys.front();
  if (const char* given = std::getenv("OPENAI_API_KEY"); key.empty() && given != nullptr)
    key = given;
  if (!key.empty()) target.headers.emplace_back("Authorization", "Bearer " + key);
  return target;
}

// The first requests with other prompts; throws Error when one fails, since then all would.
void warm_up(const ServeTarget& target, const std::vector<PlannedRequest>& requests) {
  for (const RequestRecord& record : run_requests(target, requests, 1, nullptr)) {
    if (record.failure.empty()) continue;
    const bool refuses_usage = record.error.find("continuous_usage") != std::string::npos;
    throw Error(fmt::format("the first request to {}{} failed with {}: {}{}",
                            target.address.origin,
                            target.endpoint,
                            record.failure,
                            record.error,
                            refuses_usage ? "; give --no-continuous-usage" : ""));
  }
}

// After a signal only the requests in flight are waited for; a second one ends the program at once.
void run_and_watch(const ServeTarget& target,
                   const std::vector<PlannedRequest>& requests,
                   int32_t max_concurrency,
                   ServeFindings* findings) {
  block_stop_signals();
  Progress progress("requests", static_cast<int64_t>(requests.size()));
  int32_t num_told = 0;
  const auto tell = [&](int32_t num_done) {
    try {
      progress.advance(num_done - std::exchange(num_told, num_done));
    } catch (const Error&) {
      if (findings->stopped) std::_Exit(kExitInterrupted);
      findings->stopped = true;
      fmt::print(stderr, "stopping: waiting for the requests in flight\n");
    }
    return !findings->stopped;
  };
  const SpeculationCounters before = speculation_counters(target);
  findings->records = run_requests(target, requests, max_concurrency, tell);
  findings->speculation = speculation_counters(target);
  for (const auto& [name, count] : before) findings->speculation[name] -= count;
}

ServeFindings measure(const BenchRun& run,
                      const ServeBenchOptions& options,
                      const ServeSetup& setup) {
  const ServeTarget target = target_of(run.config(), options, setup);
  const PromptMaker prompts(options.tokenizer.empty()
                                ? nullptr
                                : Tokenizer::load(model_folder(options.tokenizer, Role::kTarget)));
  if (options.ready_check_timeout_s > 0) wait_until_ready(target, options.ready_check_timeout_s);
  const AskedModel model = asked_model(target, run.is_given("model") ? run.config().model : "");
  const std::vector<RequestShape> shapes = load_shapes(options, model.max_model_len);
  const auto plan = [&](const std::vector<RequestShape>& some, double rate_per_s, uint64_t number) {
    const uint64_t salt = mix_seed(static_cast<uint64_t>(options.seed), number);
    return plan_run(some, {options, model.name, setup.chat, rate_per_s, salt}, prompts);
  };
  std::vector<RequestShape> first(static_cast<size_t>(options.num_warmups));
  for (size_t i = 0; i < first.size(); ++i) first[i] = shapes[i % shapes.size()];
  if (!first.empty()) warm_up(target, plan(first, INFINITY, 0));
  ServeFindings findings{.server = target.address.origin + target.address.path_prefix,
                         .model = model.name};
  run_and_watch(target, plan(shapes, setup.rate_per_s, 1), options.max_concurrency, &findings);
  return findings;
}

}  // namespace

int serve_bench(const CommandLine& line) {
  ServeBenchOptions options;
  // The words that follow --goodput's first.
  BenchRun run(
      "serve", line, serve_bench_options(&options), {.most = SIZE_MAX, .are_model = false});
  BenchReport report = run.new_report({});
  const ServeSetup setup =
      understand_serve_options(options, run.is_given("request_rate"), run.positional());
  const ServeFindings findings = measure(run, options, setup);
  fill_serve_report(options, setup, findings, &report);
  run.finish(std::move(report));
  if (std::ranges::any_of(findings.records, &std::string::empty, &RequestRecord::failure)) return 0;
  fmt::print(stderr, "outrider: no request succeeded\n");
  return kExitFailed;
}

}  // namespace outrider
