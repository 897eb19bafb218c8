// See front_end.h.
#include "runtime/commands/front_end.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/ranks/model_names.h"

namespace outrider {

void refuse_synthetic(const RunConfig& config) {
  if (!is_synthetic(config.model)) return;
  throw Error(
      fmt::format("model {} has no tokenizer: it is for outrider bench decode", config.model));
}

HttpOptions http_options(const RunConfig& config) {
  HttpOptions options;
  options.host = config.host;
  options.port = config.port;
  options.api_keys = config.api_keys;
  options.call.max_logprobs = config.max_logprobs;
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
          .defaults = context.defaults,
          .end_token_ids = context.model_config.eos_token_ids};
}

}  // namespace outrider
