// Qwen 3, without experts.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_head_dim = 128});
  read_rope(fields, config);
  read_qwen_windows(fields, config);
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  config.qk_norm = true;
}

}  // namespace

const Family kQwen3 = {"qwen3", "norms of q and k per head; windows by layer", read};

}  // namespace outrider
