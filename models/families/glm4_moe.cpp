// GLM-4.5 to 4.7.
#include "models/families/readers.h"
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
  read_router(fields, config);
  config.experts.sigmoid = true;
  config.experts.correction = true;
  const int32_t num_shared = fields.integer_or("n_shared_experts", {0, 64}, 1);
  config.experts.shared_ffn_dim = num_shared * config.experts.ffn_dim;
  config.names.shared_expert = "mlp.shared_experts";
  const int32_t num_dense = fields.integer_or("first_k_dense_replace", {0, 1'000'000}, 1);
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    config.experts.dense_layers.push_back(layer < num_dense);
  }
  fields.know({"num_nextn_predict_layers", "num_mtp_layers"});  // layers that are not loaded
}

}  // namespace

const Family kGlm4Moe = {"glm4_moe",
                         "partial rope; norms of q and k; sigmoid router with groups; a shared "
                         "expert; first layers dense",
                         read};

}  // namespace outrider
