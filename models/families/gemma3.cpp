// Gemma 3, alone or the text part of models that see.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_gemma_2_or_3(fields,
                    config,
                    {.activation = "hidden_activation",
                     .default_heads = 8,
                     .default_kv_heads = 4,
                     .default_head_dim = 256,
                     .default_vocab = 262'208,
                     .default_positions = 131'072,
                     .default_activation = "gelu_pytorch_tanh",
                     .tied = true});
  read_rope(fields, config, {.default_theta = 1e6, .of_kinds = true, .local_theta = 1e4});
  read_windows(fields, config, 4096, 6);
  config.qk_norm = true;
  const auto cap = [&fields](const char* key) {
    return fields.is_set(key) ? static_cast<float>(fields.number_or(key, 1e-3, 1e6, 0.0)) : 0.0f;
  };
  config.attention_softcap = cap("attn_logit_softcapping");
  config.logit_softcap = cap("final_logit_softcapping");
}

}  // namespace

const Family kGemma3Text = {"gemma3_text",
                            "as gemma2 without soft caps; norms of q and k; 5 of 6 layers "
                            "windowed, with a rope of their own",
                            read};

}  // namespace outrider
