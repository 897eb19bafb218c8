// serve: the OpenAI-compatible server as a front end of the job.
#include "http/server.h"
#include "http/service.h"
#include "runtime/base/config.h"
#include "runtime/base/log.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/front_end.h"
#include "runtime/ranks/job.h"
#include "runtime/ranks/signals.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSignalInterval = std::chrono::milliseconds(100);

void warn_when_open(const RunConfig& config) {
  const bool loopback =
      config.host.starts_with("127.") || config.host == "localhost" || config.host == "::1";
  if (loopback || !config.api_keys.empty()) return;
  log_warning(
      "listening on {} without api_key: everyone who reaches this address can use the server",
      config.host);
}

// Until what runs has ended, the time is over, or a second signal says now.
void drain(HttpServer& server, const OpenAiService& service, double timeout_s) {
  server.begin_drain();
  log_info("stopping: {} calls may finish within {} s", service.num_running(), timeout_s);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(timeout_s));
  while (service.num_running() > 0 && Clock::now() < end) {
    if (wait_stop_signal(kSignalInterval)) break;
  }
  if (!server.stop(std::chrono::milliseconds(0))) log_warning("some calls were cut off");
}

int serve(const FrontEndContext& context) {
  const HttpOptions options = http_options(context.config);
  OpenAiService service(context.engine, context.metrics, served_model(context), options);
  HttpServer server(options, service, context.metrics);
  server.start();
  const EngineInfo& info = context.engine.info();
  log_info("ready: http://{}:{}/v1 serves {} ({} tokens of context, {} target {}, {})",
           options.host,
           server.port(),
           info.served_model_name,
           info.max_model_len,
           info.num_target_ranks,
           info.num_target_ranks == 1 ? "rank" : "ranks",
           info.draft.empty() ? "no draft" : "draft: " + info.draft);
  while (!wait_stop_signal(kSignalInterval)) {
  }
  drain(server, service, context.config.shutdown_timeout_s);
  context.engine.request_stop(Coordinator::Stop::kNow);
  return 0;
}

}  // namespace

int serve_command(const CommandLine& line) {
  const LoadedConfig loaded = load_config(line.arguments);
  set_log_level(log_level_from_name(loaded.config.log_level));
  warn_when_open(loaded.config);
  refuse_synthetic(loaded.config);
  return run_job(loaded.config, line.argc, line.argv, serve);
}

}  // namespace outrider
