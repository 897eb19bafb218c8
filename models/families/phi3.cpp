// Phi 3, 3.5 and 4, and Phi 4 mini.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_eps = 1e-5});
  read_rope(fields, config, {.partial = "partial_rotary_factor", .longrope = true});
  config.sliding_window = fields.integer_or("sliding_window", {1, kMaxPositions}, 0);
  config.qkv_layout = QkvLayout::kFused;
  config.names.qkv = "self_attn.qkv_proj";
  config.names.gate_up = "mlp.gate_up_proj";
  // Their code in the folder is what Hugging Face has; biases of the files are all off.
  fields.know({"auto_map", "full_attn_mod", "interpolate_factor"});
  for (const char* key : {"attention_bias", "lm_head_bias", "mlp_bias"}) {
    refuse_unless(fields, key, false);
  }
}

}  // namespace

const Family kPhi3 = {"phi3", "fused qkv and gate_up; longrope; partial rope; a window", read};

}  // namespace outrider
