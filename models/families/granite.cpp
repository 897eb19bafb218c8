// Granite 3.x and 4.x without Mamba.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config);
  read_rope(fields, config);
  config.attention_bias = fields.flag_or("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  config.mlp_bias = fields.flag_or("mlp_bias", false);
  const auto factor = [&fields](const char* key) {
    return static_cast<float>(fields.number_or(key, 1e-6, 1e6, 1.0));
  };
  config.embedding_scale = factor("embedding_multiplier");
  config.residual_scale = factor("residual_multiplier");
  config.attention_scale = factor("attention_multiplier");
  config.logit_scale = 1.0f / factor("logits_scaling");
}

}  // namespace

const Family kGranite = {
    "granite", "factors on embedding, scores, residual stream and logits", read};

}  // namespace outrider
