// GLM-4.5 to 4.7.
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_kv_heads = 8, .default_eps = 1e-5});
  read_rope(fields, config, {.partial = "partial_rotary_factor", .default_partial = 0.5});
  config.attention_bias = fields.flag_or("attention_bias", false);
  config.qk_norm = fields.flag_or("use_qk_norm", false);
  read_experts(fields,
               config,
               {.count = "n_routed_experts",
                .default_count = 128,
                .default_per_row = 8,
                .default_ffn = 1408});
  read_sigmoid_router(fields, config, {}, 1);
}

}  // namespace

const Family kGlm4Moe = {"glm4_moe",
                         "partial rope; norms of q and k; sigmoid router with groups; a shared "
                         "expert; first layers dense",
                         read};

}  // namespace outrider
