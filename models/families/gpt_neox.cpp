// GPT-NeoX, Pythia, Dolly.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  config.names = {.embedding = "gpt_neox.embed_in",
                  .layers = "gpt_neox.layers.",
                  .final_norm = "gpt_neox.final_layer_norm",
                  .head = "embed_out",
                  .qkv = "attention.query_key_value",
                  .o = "attention.dense",
                  .up = "mlp.dense_h_to_4h",
                  .down = "mlp.dense_4h_to_h"};
  read_decoder(fields,
               config,
               {.norm_eps = "layer_norm_eps", .default_eps = 1e-5, .default_activation = "gelu"});
  read_rope(fields,
            config,
            {.theta = "rotary_emb_base", .partial = "rotary_pct", .default_partial = 0.25});
  config.qkv_layout = QkvLayout::kGrouped;
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", true);
  config.mlp_bias = true;
  config.gated_mlp = false;
  config.parallel_mlp = fields.flag_or("use_parallel_residual", true);
}

}  // namespace

const Family kGptNeox = {"gpt_neox",
                         "layer norm with bias; biases; fused qkv by head; partial rope; plain "
                         "MLP, beside attention or after",
                         read};

}  // namespace outrider
