// MiniMax M2.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

// Keys of the first MiniMax, which the files still have.
void refuse_other_minimax(const ConfigFields& fields) {
  for (const double type : fields.numbers("attn_type_list").value_or(std::vector<double>{})) {
    if (type != 1.0) fields.fail("attn_type_list with anything other than 1 is not supported");
  }
  if (fields.number_or("shared_intermediate_size", 0.0, kMaxFfn, 0.0) != 0.0) {
    fields.fail("shared_intermediate_size other than 0 is not supported");
  }
  for (const char* key :
       {"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"}) {
    if (fields.number_or(key, -1e6, 1e6, 1.0) == 1.0) continue;
    fields.fail(std::string(key) + " other than 1 is not supported");
  }
  fields.know({"shared_moe_mode", "mlp_intermediate_size", "auto_map"});
  fields.know({"use_mtp", "num_mtp_modules", "mtp_transformer_layers"});  // not loaded
}

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_kv_heads = 8, .default_head_dim = 128});
  const int32_t rotary_dim = fields.integer_or("rotary_dim", {2, config.head_dim}, config.head_dim);
  read_rope(fields,
            config,
            {.partial = "partial_rotary_factor",
             .default_theta = 5e6,
             .default_partial = static_cast<double>(rotary_dim) / config.head_dim});
  config.qk_norm = true;
  config.qk_norm_span = QkNormSpan::kAllHeads;
  refuse_unless(fields, "use_qk_norm", true);
  if (fields.text_or("qk_norm_type", "per_layer") != "per_layer") {
    fields.fail("qk_norm_type other than per_layer is not supported");
  }
  read_mixtral_experts(fields, config, 256, 8);
  if (fields.text_or("scoring_func", "sigmoid") != "sigmoid") {
    fields.fail("scoring_func other than sigmoid is not supported");
  }
  refuse_unless(fields, "use_routing_bias", true);
  config.experts.sigmoid = true;
  config.experts.correction = true;
  refuse_other_minimax(fields);
}

}  // namespace

const Family kMinimaxM2 = {
    "minimax_m2", "norms of q and k over all heads; partial rope; sigmoid router", read};

}  // namespace outrider
