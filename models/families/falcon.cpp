// Falcon 1 to 40B and RefinedWeb.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  config.names = {.embedding = "transformer.word_embeddings",
                  .layers = "transformer.h.",
                  .final_norm = "transformer.ln_f",
                  .qkv = "self_attention.query_key_value",
                  .o = "self_attention.dense",
                  .up = "mlp.dense_h_to_4h",
                  .down = "mlp.dense_4h_to_h"};
  config.ffn_dim = 4 * fields.integer("hidden_size", {1, 65'536});
  const bool is_new = fields.flag_or("new_decoder_architecture", false);
  const bool multi_query = fields.flag_or("multi_query", true);
  fields.know({"num_kv_heads"});
  read_decoder(fields,
               config,
               {.kv_heads = is_new ? "num_kv_heads" : "num_attention_heads",
                .ffn = "ffn_hidden_size",
                .norm_eps = "layer_norm_epsilon",
                .activation = "activation",
                .default_positions = 2048,
                .default_eps = 1e-5,
                .default_activation = "gelu",
                .tied = true});
  if (!is_new && multi_query) config.n_kv_heads = 1;
  read_rope(fields, config);
  config.alibi = fields.flag_or("alibi", false);
  config.qkv_layout = QkvLayout::kGrouped;
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.attention_bias = fields.flag_or("bias", false);
  config.attention_out_bias = config.mlp_bias = config.attention_bias;
  config.gated_mlp = false;
  config.parallel_mlp = fields.flag_or("parallel_attn", true);
  if (is_new && !config.parallel_mlp) fields.fail("parallel_attn false is not supported");
  const int32_t norms = fields.integer_or("num_ln_in_parallel_attn", {1, 2}, is_new ? 2 : 1);
  if (config.parallel_mlp && norms == 2) config.names.attn_norm = "ln_attn";
  if (config.parallel_mlp) config.names.mlp_norm = norms == 2 ? "ln_mlp" : "";
  fields.know({"auto_map", "apply_residual_connection_post_layernorm"});
}

}  // namespace

const Family kFalcon = {"falcon",
                        "layer norm with bias; fused qkv by KV head; rope or ALiBi; plain MLP, "
                        "beside attention or after",
                        read};

}  // namespace outrider
