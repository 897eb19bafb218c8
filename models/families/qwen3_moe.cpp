// Qwen 3 with experts: 30B-A3B, 235B-A22B, Coder.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_kv_heads = 4});
  read_rope(fields, config);
  fields.know({"sliding_window", "max_window_layers"});
  if (fields.flag_or("use_sliding_window", false)) {
    config.sliding_window = fields.integer_or("sliding_window", {1, kMaxPositions}, 4096);
  }
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  config.qk_norm = true;
  read_qwen_experts(fields,
                    config,
                    {.other_count = "num_local_experts",
                     .default_count = 128,
                     .default_per_row = 8,
                     .default_ffn = 768});
}

}  // namespace

const Family kQwen3Moe = {
    "qwen3_moe",
    "norms of q and k per head; experts; dense layers by list or step; a window on every layer",
    read};

}  // namespace outrider
