// gpt-oss, 20b and 120b.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields,
               config,
               {.default_heads = 64,
                .default_kv_heads = 8,
                .default_head_dim = 64,
                .default_vocab = 201'088,
                .default_positions = 131'072,
                .default_eps = 1e-5});
  if (!fields.is_set("rope_scaling") && !fields.is_set("rope_parameters")) {
    fields.fail("\"rope_scaling\" or \"rope_parameters\" is missing");
  }
  read_rope(fields, config, {.default_theta = 150'000.0});
  read_windows(fields, config, 128, 2);
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", true);
  config.names.sinks = "self_attn.sinks";
  read_experts(fields,
               config,
               {.count = "num_local_experts",
                .other_count = "num_experts",
                .ffn = "intermediate_size",
                .default_count = 128,
                .default_per_row = 4});
  config.experts.normalised = true;
  config.experts.biases = true;
  config.experts.swiglu.alpha =
      static_cast<float>(fields.number_or("swiglu_alpha", 1e-3, 1e3, 1.702));
  config.experts.swiglu.limit =
      static_cast<float>(fields.number_or("swiglu_limit", 1e-3, 1e6, 7.0));
  config.names.router = "mlp.router";
  config.names.experts_gate_up = "mlp.experts.gate_up_proj";
  config.names.experts_down = "mlp.experts.down_proj";
  config.names.experts_transposed = true;
  // Older names of num_experts_per_tok and of the original length of rope_scaling.
  fields.know({"experts_per_token", "initial_context_length"});
}

}  // namespace

const Family kGptOss = {"gpt_oss",
                        "biases; attention sinks; every second layer windowed; experts with "
                        "biases and clamped SwiGLU, also in MXFP4",
                        read};

}  // namespace outrider
