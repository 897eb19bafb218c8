// Gemma 2.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_gemma_2_or_3(fields,
                    config,
                    {.activation = "hidden_activation",
                     .default_head_dim = 256,
                     .default_activation = "gelu_pytorch_tanh",
                     .tied = true});
  read_rope(fields, config);
  read_windows(fields, config, 4096, 2);
  const auto cap = [&fields](const char* key, double otherwise) {
    if (fields.has(key) && !fields.is_set(key)) return 0.0f;
    return static_cast<float>(fields.number_or(key, 1e-3, 1e6, otherwise));
  };
  config.attention_softcap = cap("attn_logit_softcapping", 50.0);
  config.logit_softcap = cap("final_logit_softcapping", 30.0);
}

}  // namespace

const Family kGemma2 = {
    "gemma2",
    "1 + w norms before and after; soft caps; every second layer windowed; tanh GELU",
    read};

}  // namespace outrider
