// OPT, but for the 350M one.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  config.names = {.embedding = "model.decoder.embed_tokens",
                  .positions = "model.decoder.embed_positions",
                  .layers = "model.decoder.layers.",
                  .final_norm = "model.decoder.final_layer_norm",
                  .attn_norm = "self_attn_layer_norm",
                  .o = "self_attn.out_proj",
                  .mlp_norm = "final_layer_norm",
                  .up = "fc1",
                  .down = "fc2"};
  read_decoder(fields,
               config,
               {.ffn = "ffn_dim",
                .activation = "activation_function",
                .default_positions = 2048,
                .default_eps = 1e-5,
                .default_activation = "relu",
                .tied = true});
  config.position_offset = 2;
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.attention_bias = fields.flag_or("enable_bias", true);
  config.attention_out_bias = config.mlp_bias = config.attention_bias;
  config.gated_mlp = false;
  refuse_unless(fields, "do_layer_norm_before", true);
  refuse_unless(fields, "_remove_final_layer_norm", false);
  refuse_unless(fields, "layer_norm_elementwise_affine", true);
  if (fields.integer_or("word_embed_proj_dim", {1, 65'536}, config.hidden_dim) !=
      config.hidden_dim) {
    fields.fail("word_embed_proj_dim other than hidden_size is not supported");
  }
}

}  // namespace

const Family kOpt = {
    "opt", "learned positions; layer norm with bias; biases; plain MLP with ReLU", read};

}  // namespace outrider
