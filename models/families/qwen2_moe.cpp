// Qwen 1.5 MoE and Qwen 2 57B-A14B.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config);
  read_rope(fields, config);
  // Which layers would be windowed differs between versions of transformers.
  if (fields.flag_or("use_sliding_window", false) && !fields.is_set("layer_types")) {
    fields.fail("use_sliding_window needs layer_types for model_type qwen2_moe");
  }
  read_qwen_windows(fields, config);
  config.attention_bias = fields.flag_or("qkv_bias", true);
  read_qwen_experts(
      fields, config, {.default_count = 60, .default_per_row = 4, .default_ffn = 1408});
  config.experts.shared_ffn_dim =
      fields.integer_or("shared_expert_intermediate_size", {1, kMaxFfn}, 5632);
  config.experts.shared_gate = true;
}

}  // namespace

const Family kQwen2Moe = {
    "qwen2_moe",
    "as qwen2; experts, and a shared one with a gate; dense layers by list or step",
    read};

}  // namespace outrider
