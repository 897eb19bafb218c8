// serve: the OpenAI-compatible server as a front end of the job.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "http/api/log_stats.h"
#include "http/batches/batch_api.h"
#include "http/batches/batch_queue.h"
#include "http/batches/file_store.h"
#include "http/server.h"
#include "http/service.h"
#include "http/wire/listener.h"
#include "runtime/base/log.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/front_end.h"
#include "runtime/ranks/job/job.h"
#include "runtime/ranks/job/signals.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kSignalInterval{100};

void warn_when_open(const HttpOptions& options) {
  const bool is_local = !options.uds.empty() || options.host.starts_with("127.") ||
                        options.host == "localhost" || options.host == "::1";
  if (is_local || !options.api_keys.empty()) return;
  log_warning(
      "listening on {} without api_key: everyone who reaches this address can use the server",
      options.host);
}

// 0.0.0.0 and :: are all of a host's addresses: clients elsewhere need its name.
std::string reachable_url(HttpOptions options, int port) {
  char name[256] = {};
  const bool is_any = options.host == "0.0.0.0" || options.host == "::";
  if (is_any && gethostname(name, sizeof(name) - 1) == 0) options.host = name;
  return url_of(options, port) + (options.uds.empty() ? options.root_path + "/v1" : "");
}

// Until what runs has ended, the time is over, or a second signal leaves less of it.
void drain(HttpServer& server, const OpenAiService& service, milliseconds timeout) {
  server.begin_drain();
  log_info("stopping: {} calls may finish within {:.1f} s",
           service.num_running(),
           static_cast<double>(timeout.count()) / 1e3);
  const auto end = Clock::now() + timeout;
  while (service.num_running() > 0 && Clock::now() < end) {
    if (wait_stop_signal(kSignalInterval)) break;
  }
  if (!server.stop(milliseconds{0})) log_warning("some calls were cut off");
}

// Batches leave half of the sequences and of the waiting places to the requests of others.
BatchQueue::Setup batch_setup(const FrontEndContext& context,
                              const HttpOptions& options,
                              OpenAiService& service) {
  BatchQueue::Setup setup{.ask = [&](ServiceCall call) { return service.handle(std::move(call)); },
                          .context = {context.engine.info(),
                                      context.defaults,
                                      options.call,
                                      context.model_config.eos_token_ids,
                                      context.answer_formats},
                          .num_workers = std::max(1, context.config.max_num_seqs / 2),
                          .num_places = std::max(1, context.config.max_num_queued_reqs / 2)};
  if (context.config.scheduling_policy == "fcfs") setup.least_priority = INT32_MIN;  // has none
  return setup;
}

int serve(const FrontEndContext& context,
          const HttpOptions& options,
          HttpServer& server,
          FileStore* files) {
  OpenAiService service(context.engine, context.metrics, served_model(context), options);
  std::optional<BatchQueue> queue;
  std::optional<BatchApi> batches;
  if (files != nullptr) {
    queue.emplace(*files, batch_setup(context, options, service), BatchQueue::Limits{});
    batches.emplace(*files, *queue, context.metrics, context.config.max_batch_file_bytes);
  }
  const HttpServer::Opening opening =
      server.open(service, context.metrics, batches ? &*batches : nullptr);
  const EngineInfo& info = context.engine.info();
  log_info("ready: {} serves {} ({} tokens of context, {} target {}, {})",
           reachable_url(options, server.port()),
           info.served_model_name,
           info.max_model_len,
           info.num_target_ranks,
           info.num_target_ranks == 1 ? "rank" : "ranks",
           info.draft.empty() ? "no draft" : "draft: " + info.draft);
  LogStats stats(context.metrics, context.config.log_stats_interval_s);
  std::optional<milliseconds> grace;
  while (!grace && !context.engine.status().failed) {
    grace = wait_stop_signal(kSignalInterval);
    if (const std::string line = stats.line_at(Clock::now()); !line.empty()) log_info("{}", line);
  }
  const milliseconds timeout{static_cast<int64_t>(1e3 * context.config.shutdown_timeout_s)};
  drain(server, service, std::min(timeout, grace.value_or(milliseconds{0})));
  context.engine.request_stop(Coordinator::Stop::kNow);
  return 0;
}

}  // namespace

int serve_command(const CommandLine& line) {
  const LoadedConfig loaded = load_config(line.arguments);
  refuse_synthetic(loaded.config);
  const HttpOptions options = http_options(loaded.config);
  std::unique_ptr<FileStore> files;
  HttpServer server(options);
  const auto listen = [&] {
    warn_when_open(options);
    if (!loaded.config.batch_dir.empty())
      files = std::make_unique<FileStore>(loaded.config.batch_dir, FileStore::Limits{});
    server.start();
  };
  const auto front_end = [&](const FrontEndContext& context) {
    return serve(context, options, server, files.get());
  };
  return run_job(loaded.config, line.launch, front_end, {.before_load = listen, .link = {}});
}

}  // namespace outrider
