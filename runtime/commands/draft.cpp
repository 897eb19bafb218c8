// draft: a draft model for a job that runs somewhere else, attached over TCP. One process; no other
// rank.
#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/ranks/job/attached_draft.h"
#include "runtime/ranks/job/signals.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kSignalInterval{50};

// As on the job's side the model, its weights' type and device are a target's, they are the draft's
// here.
RunConfig as_draft(RunConfig config) {
  config.speculative.model = config.model;
  config.speculative.quantization = config.quantization;
  config.speculative.device = config.device;
  return config;
}

}  // namespace

int draft_command(const CommandLine& line) {
  set_process_log_name("draft");
  std::string connect;
  const Option row = text_option("connect", &connect, "HOST:PORT of the job's draft_listen");
  const LoadedConfig loaded = load_config(line.arguments, {&row});
  if (connect.empty() || !loaded.is_given("model"))
    throw Error("usage: outrider draft --connect HOST:PORT --model DRAFT");
  block_stop_signals();
  std::atomic<bool> is_over{false};
  const std::jthread watch([&](const std::stop_token& done) {
    while (!done.stop_requested() && !is_over)
      is_over = wait_stop_signal(kSignalInterval).has_value();
  });
  return run_attached_draft({.config = as_draft(loaded.config),
                             .job = parse_tcp_address(connect, "connect"),
                             .is_over = [&] { return is_over.load(); }});
}

}  // namespace outrider
