// Command R7B and Command A.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.norm_eps = "layer_norm_eps", .default_eps = 1e-5, .tied = true});
  read_rope(fields, config);
  read_windows(fields, config, 4096, 4);
  if (config.sliding_window == 0)
    config.no_rope_layers.assign(config.full_layers.size(), true);
  else
    config.no_rope_layers = config.full_layers;
  config.rope.interleaved = true;
  config.norm = NormKind::kLayer;
  config.parallel_mlp = true;
  config.names.mlp_norm = "";
  config.logit_scale = static_cast<float>(fields.number_or("logit_scale", 1e-6, 1e6, 0.0625));
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  refuse_unless(fields, "use_qk_norm", false);
  refuse_unless(fields, "use_parallel_block", true);
  refuse_unless(fields, "use_gated_activation", true);
  fields.know({"order_of_interleaved_layers",
               "position_embedding_type",
               "rotary_pct",
               "use_embedding_sharing",
               "use_parallel_embedding"});
}

}  // namespace

const Family kCohere2 = {"cohere2",
                         "layer norm; MLP beside attention; interleaved rope on windowed layers "
                         "only; a factor on logits",
                         read};

}  // namespace outrider
