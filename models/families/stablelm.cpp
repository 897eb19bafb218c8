// StableLM 3B, Zephyr and 2.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.norm_eps = "layer_norm_eps", .default_eps = 1e-5});
  read_rope(fields, config, {.partial = "partial_rotary_factor", .default_partial = 0.25});
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.attention_bias = fields.flag_or("use_qkv_bias", false);
  config.qk_norm = fields.flag_or("qk_layernorm", false);
  config.qk_norm_span = QkNormSpan::kOwnHead;
  config.names.q_norm = "self_attn.q_layernorm.norms";
  config.names.k_norm = "self_attn.k_layernorm.norms";
  config.parallel_mlp = fields.flag_or("use_parallel_residual", false);
  if (config.parallel_mlp) config.names.mlp_norm = "";
  fields.know({"rotary_scaling_factor"});
}

}  // namespace

const Family kStablelm = {
    "stablelm",
    "layer norm with bias; partial rope; layer norms of q and k by head; MLP beside attention",
    read};

}  // namespace outrider
