// DeepSeek-V3 and R1, and Kimi K2, which has the same keys.
#include <cmath>

#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

constexpr int64_t kMaxRank = 4096;
constexpr int64_t kMaxPart = 1024;

void read_latent(const ConfigFields& fields, LatentConfig& latent) {
  latent.kv_rank = fields.integer_or("kv_lora_rank", {1, kMaxRank}, 512);
  // Null: queries are not cut in two.
  const bool is_low = !fields.has("q_lora_rank") || fields.is_set("q_lora_rank");
  if (is_low) latent.q_rank = fields.integer_or("q_lora_rank", {1, kMaxRank}, 1536);
  latent.nope_dim = fields.integer_or("qk_nope_head_dim", {1, kMaxPart}, 128);
  latent.rope_dim = fields.integer_or("qk_rope_head_dim", {2, kMaxPart}, 64);
  latent.value_dim = fields.integer_or("v_head_dim", {2, kMaxPart}, 128);
  if (latent.value_dim % 2 != 0) fields.fail("an odd \"v_head_dim\" is not supported");
  fields.know({"qk_head_dim"});  // their sum
}

// YaRN's factor on scores, whose root it is on queries and on keys, whether they turn or not.
double score_factor(const ConfigFields& fields, const RopeConfig& rope) {
  if (rope.scaling == RopeScaling::kNone || rope.factor <= 1.0) return 1.0;
  double all_dim = 0.0;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto object = fields.object(key);
    if (object) all_dim = object->number_or("mscale_all_dim", 0.0, 1e3, all_dim);
  }
  const double mscale = 0.1 * all_dim * std::log(rope.factor) + 1.0;
  return mscale * mscale;
}

void read_attention(const ConfigFields& fields, ModelConfig& config) {
  LatentConfig& latent = config.latent;
  config.head_dim = latent.rope_dim;  // of what turns
  read_rope(fields, config);
  config.rope.interleaved = fields.flag_or("rope_interleave", true);
  config.attention_scale =
      static_cast<float>(score_factor(fields, config.rope) / std::sqrt(latent.query_dim()));
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  if (config.attention_bias && latent.q_rank == 0) {
    fields.fail("attention_bias true without \"q_lora_rank\" is not supported");
  }
  if (config.n_kv_heads != config.n_heads) {
    fields.fail("num_key_value_heads other than num_attention_heads is not supported");
  }
  config.n_kv_heads = 1;
  config.head_dim = latent.rope_dim + latent.kv_rank;
}

void refuse_other_routers(const ConfigFields& fields) {
  if (fields.text_or("scoring_func", "sigmoid") != "sigmoid") {
    fields.fail("scoring_func other than sigmoid is not supported");
  }
  if (fields.text_or("topk_method", "noaux_tc") != "noaux_tc") {
    fields.fail("topk_method other than noaux_tc is not supported");
  }
  if (fields.integer_or("moe_layer_freq", {1, 1'000'000}, 1) != 1) {
    fields.fail("moe_layer_freq other than 1 is not supported");
  }
  fields.know({"ep_size", "aux_loss_alpha", "seq_aux", "auto_map"});
}

void read(const ConfigFields& fields, ModelConfig& config) {
  read_latent(fields, config.latent);
  read_decoder(
      fields,
      config,
      {.default_head_dim = config.latent.rope_dim, .default_positions = 4096, .default_eps = 1e-6});
  read_attention(fields, config);
  read_experts(fields,
               config,
               {.count = "n_routed_experts",
                .default_count = 256,
                .default_per_row = 8,
                .default_ffn = 2048});
  read_sigmoid_router(fields, config, {.groups = 8, .chosen_groups = 4, .scale = 2.5}, 3);
  refuse_other_routers(fields);
}

}  // namespace

const Family kDeepseekV3 = {"deepseek_v3",
                            "latent attention (MLA); interleaved rope; yarn's factor on scores; "
                            "experts as glm4_moe",
                            read};
const Family kKimiK2 = {"kimi_k2", "as deepseek_v3", read};

}  // namespace outrider
