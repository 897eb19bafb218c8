// StarCoder 2.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields,
               config,
               {.norm_eps = "norm_epsilon",
                .default_eps = 1e-5,
                .default_activation = "gelu_pytorch_tanh",
                .tied = true});
  read_rope(fields, config);
  config.sliding_window = fields.integer_or("sliding_window", {1, kMaxPositions}, 0);
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.attention_bias = fields.flag_or("use_bias", true);
  config.attention_out_bias = config.attention_bias;
  config.mlp_bias = config.attention_bias;
  config.gated_mlp = false;
  config.names.up = "mlp.c_fc";
  config.names.down = "mlp.c_proj";
  for (const char* key : {"mlp_type", "norm_type"}) {
    const std::string value = fields.text_or(key, "default");
    if (value != "default" && value != "layer_norm") {
      fields.fail(std::string(key) + " \"" + value + "\" is not supported");
    }
  }
}

}  // namespace

const Family kStarcoder2 = {
    "starcoder2", "layer norm with bias; biases; plain MLP with tanh GELU; a window", read};

}  // namespace outrider
