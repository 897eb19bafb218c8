// GPT-2.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  config.names = {.embedding = "transformer.wte",
                  .positions = "transformer.wpe",
                  .layers = "transformer.h.",
                  .final_norm = "transformer.ln_f",
                  .attn_norm = "ln_1",
                  .qkv = "attn.c_attn",
                  .o = "attn.c_proj",
                  .mlp_norm = "ln_2",
                  .up = "mlp.c_fc",
                  .down = "mlp.c_proj"};
  config.ffn_dim = 4 * fields.integer("n_embd", {1, 65'536});
  read_decoder(fields,
               config,
               {.hidden = "n_embd",
                .layers = "n_layer",
                .heads = "n_head",
                .kv_heads = "n_head",
                .ffn = "n_inner",
                .positions = "n_positions",
                .norm_eps = "layer_norm_epsilon",
                .activation = "activation_function",
                .default_positions = 1024,
                .default_eps = 1e-5,
                .default_activation = "gelu_new",
                .tied = true});
  config.qkv_layout = QkvLayout::kFused;
  config.transposed = true;
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.attention_bias = config.attention_out_bias = config.mlp_bias = true;
  config.gated_mlp = false;
  if (!fields.flag_or("scale_attn_weights", true)) config.attention_scale = 1.0f;
  refuse_unless(fields, "scale_attn_by_inverse_layer_idx", false);
  refuse_unless(fields, "add_cross_attention", false);
}

}  // namespace

const Family kGpt2 = {"gpt2",
                      "learned positions; layer norm with bias; biases; transposed matrices, fused "
                      "qkv; plain MLP with tanh GELU",
                      read};

}  // namespace outrider
