// GLM-4 of 0414, without experts.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_head_dim = 128, .default_eps = 1.5625e-7});
  read_rope(fields, config, {.partial = "partial_rotary_factor", .default_partial = 0.5});
  config.rope.interleaved = true;
  config.attention_bias = fields.flag_or("attention_bias", true);
  config.names.gate_up = "mlp.gate_up_proj";
  config.names.attn_post_norm = "post_self_attn_layernorm";
  config.names.mlp_post_norm = "post_mlp_layernorm";
}

}  // namespace

const Family kGlm4 = {
    "glm4", "norms before and after; partial interleaved rope; fused gate_up", read};

}  // namespace outrider
