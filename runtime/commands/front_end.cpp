// See front_end.h.
#include "runtime/commands/front_end.h"

#include <fmt/format.h>

#include <sstream>

#include "models/checkpoint/fingerprint.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/commands/build_info.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {

namespace {

constexpr size_t kMaxKeyFileBytes = size_t{1} << 20;
constexpr size_t kFormBytes = 64u << 10;  // around a file that is sent

std::vector<std::string> api_keys_of(const RunConfig& config) {
  std::vector<std::string> keys = config.api_keys;
  if (config.api_key_file.empty()) return keys;
  const size_t num_given = keys.size();
  std::istringstream lines(read_text_file(config.api_key_file, kMaxKeyFileBytes));
  for (std::string line; std::getline(lines, line);) {
    const size_t end = line.find_last_not_of(" \t\r");
    if (end != std::string::npos) keys.push_back(line.substr(0, end + 1));
  }
  if (keys.size() == num_given) throw Error(fmt::format("{}: has no key", config.api_key_file));
  return keys;
}

size_t connections_per_peer(const RunConfig& config, bool is_open) {
  constexpr size_t kOfStrangers = 64;
  if (config.max_connections_per_peer != kAutoConnectionsPerPeer)
    return static_cast<size_t>(config.max_connections_per_peer);
  return is_open ? kOfStrangers : 0;
}

// Equal where equal seeds give equal texts: of the program, the weights and how they are computed.
std::string system_fingerprint(const FrontEndContext& context) {
  const RunConfig& config = context.config;
  const bool rounds = activations_of(config, context.model_config) == ops::Activations::kBF16;
  const std::string weights =
      has_no_files(config.model)
          ? config.model
          : fingerprint_of_weights(model_folder(config.model, Role::kTarget));
  const std::string all = fmt::format("{} {} {} {} {} {}",
                                      kBuildCommit,
                                      weights,
                                      config.quantization,
                                      config.device,
                                      rounds ? "bfloat16" : "float32",
                                      ops::kv_type_name(kv_type_of(config, context.model_config)));
  return fmt::format("outrider-{}-{}-tp{}-{}",
                     kBuildVersion,
                     config.numerics,
                     context.engine.info().num_target_ranks,
                     fingerprint_of_text(all).substr(0, 8));
}

// "/llm": what paths may begin with; empty when there is none.
std::string root_path_of(const RunConfig& config) {
  std::string path = config.root_path;
  while (path.ends_with('/')) path.pop_back();
  const bool has_query = path.find_first_of("?#") != std::string::npos;
  if (!path.empty() && (path.front() != '/' || has_query))
    throw Error(fmt::format("root_path: '{}' is no path like /llm", config.root_path));
  return path;
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
  options.uds = config.uds;
  options.ssl_certfile = config.ssl_certfile;
  options.ssl_keyfile = config.ssl_keyfile;
  options.root_path = root_path_of(config);
  options.build = build_info();
  options.api_keys = api_keys_of(config);
  options.cors = {.allowed_origins = config.allowed_origins,
                  .allowed_methods = config.allowed_methods,
                  .allowed_headers = config.allowed_headers,
                  .allow_credentials = config.allow_credentials};
  options.webui = config.webui;
  options.connection.max_connections = static_cast<size_t>(config.max_connections);
  options.connection.max_connections_per_peer =
      connections_per_peer(config, options.api_keys.empty());
  if (!config.batch_dir.empty())
    options.connection.max_upload_bytes =
        static_cast<size_t>(config.max_batch_file_bytes) + kFormBytes;
  if (config.default_seed >= 0) options.default_seed = static_cast<uint64_t>(config.default_seed);
  options.call.max_choices = config.max_num_seqs;
  options.call.max_logprobs = config.max_logprobs;
  options.call.strict_params = config.strict_params;
  options.call.disable_any_whitespace = config.disable_any_whitespace;
  if (config.per_request_spec_decode_metrics == "summary") {
    options.per_request_spec_decode_metrics = SpecDecodeMetrics::kSummary;
  } else if (config.per_request_spec_decode_metrics == "detailed") {
    options.per_request_spec_decode_metrics = SpecDecodeMetrics::kDetailed;
  }
  return options;
}

ServedModel served_model(const FrontEndContext& context) {
  return {.tokenizer = context.tokenizer,
          .chat_template = context.chat_template,
          .answer_formats = context.answer_formats,
          .grammars = context.grammars,
          .defaults = context.defaults,
          .end_token_ids = context.model_config.eos_token_ids,
          .system_fingerprint = system_fingerprint(context)};
}

}  // namespace outrider
