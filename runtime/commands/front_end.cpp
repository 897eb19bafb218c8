// See front_end.h.
#include "runtime/commands/front_end.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/commands/build_info.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {

namespace {

size_t connections_per_peer(const RunConfig& config) {
  constexpr size_t kOfStrangers = 64;
  if (config.max_connections_per_peer != kAutoConnectionsPerPeer)
    return static_cast<size_t>(config.max_connections_per_peer);
  return config.api_keys.empty() ? kOfStrangers : 0;
}

}  // namespace

void refuse_synthetic(const RunConfig& config) {
  if (!is_synthetic(config.model)) return;
  throw Error(
      fmt::format("model {} has no tokenizer: it is for outrider bench decode", config.model));
}

HttpOptions http_options(const RunConfig& config) {
  HttpOptions options;
  options.host = config.host;
  options.port = config.port;
  options.build = build_info();
  options.api_keys = config.api_keys;
  options.allowed_origins = config.allowed_origins;
  options.connection.max_connections = static_cast<size_t>(config.max_connections);
  options.connection.max_connections_per_peer = connections_per_peer(config);
  options.call.max_logprobs = config.max_logprobs;
  options.call.strict_params = config.strict_params;
  if (config.per_request_spec_decode_metrics == "summary") {
    options.per_request_spec_decode_metrics = SpecDecodeMetrics::kSummary;
  } else if (config.per_request_spec_decode_metrics == "detailed") {
    options.per_request_spec_decode_metrics = SpecDecodeMetrics::kDetailed;
  }
  return options;
}

std::string url_of(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", is_ipv6 ? "[" + host + "]" : host, port);
}

ServedModel served_model(const FrontEndContext& context) {
  return {.tokenizer = context.tokenizer,
          .chat_template = context.chat_template,
          .defaults = context.defaults,
          .end_token_ids = context.model_config.eos_token_ids};
}

}  // namespace outrider
