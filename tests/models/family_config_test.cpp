// config.json of single families: their defaults, and one sentence for what is not computed.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/base/error_sentence.h"
#include "tests/models/config_test_util.h"

namespace outrider {
namespace {

using namespace test;

// The published config.json, with its old names of rope keys.
TEST(ModelConfig, LatentAttentionOfDeepseekV3) {
  const std::string text =
      R"({"model_type":"deepseek_v3","architectures":["DeepseekV3ForCausalLM"],
          "auto_map":{"AutoConfig":"x"},"attention_bias":false,"hidden_size":7168,"ep_size":1,
          "intermediate_size":18432,"num_hidden_layers":5,"num_attention_heads":128,
          "num_key_value_heads":128,"vocab_size":129280,"max_position_embeddings":163840,
          "moe_layer_freq":1,"num_nextn_predict_layers":1,"scoring_func":"sigmoid",
          "topk_method":"noaux_tc","rms_norm_eps":1e-6,"rope_theta":10000,"torch_dtype":"bfloat16",
          "rope_scaling":{"type":"yarn","factor":40,"beta_fast":32,"beta_slow":1,"mscale":1.0,
                          "mscale_all_dim":1.0,"original_max_position_embeddings":4096}})";
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.n_kv_heads, 1);
  EXPECT_EQ(config.head_dim, 576);
  EXPECT_EQ(config.latent.q_rank, 1536);
  EXPECT_EQ(config.latent.query_dim(), 192);
  EXPECT_EQ(config.value_dim(), 128);
  EXPECT_EQ(config.rope.rotary_dim, 64);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_EQ(config.rope.attention_factor, 1.0);
  const double mscale = 0.1 * std::log(40.0) + 1.0;
  EXPECT_NEAR(config.attention_scale, mscale * mscale / std::sqrt(192.0), 1e-8);
  EXPECT_EQ(config.experts.count, 256);
  EXPECT_EQ(config.experts.groups, 8);
  EXPECT_EQ(config.experts.chosen_groups, 4);
  EXPECT_EQ(config.experts.scale, 2.5f);
  EXPECT_EQ(config.experts.shared_ffn_dim, 2048);
  EXPECT_EQ(config.experts.dense_layers, (std::vector<bool>{true, true, true, false, false}));
  const std::string plain = text.substr(0, text.size() - 1) + R"(,"q_lora_rank":null})";
  EXPECT_EQ(parse(plain).latent.q_rank, 0);
  EXPECT_EQ(parse(plain).attention_scale, config.attention_scale);
}

TEST(ModelConfig, GptOss) {
  const std::string start = R"({"model_type":"gpt_oss","architectures":["GptOssForCausalLM"],
      "hidden_size":64,"intermediate_size":80,"num_hidden_layers":3,
      "initial_context_length":4096,"experts_per_token":4)";
  const std::string yarn = R"(,"rope_scaling":{"rope_type":"yarn","factor":32.0,"truncate":false,
      "original_max_position_embeddings":4096})";
  const ModelConfig config = parse(start + yarn + "}");
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.n_kv_heads, 8);
  EXPECT_EQ(config.rope.theta, 150'000.0);
  EXPECT_FALSE(config.rope.yarn_truncate);
  EXPECT_EQ(config.sliding_window, 128);
  EXPECT_EQ(config.full_layers, (std::vector<bool>{false, true, false}));
  EXPECT_TRUE(config.attention_bias && config.attention_out_bias && config.experts.biases);
  EXPECT_EQ(config.experts.count, 128);
  EXPECT_EQ(config.experts.per_row, 4);
  EXPECT_EQ(config.experts.swiglu.alpha, 1.702f);
  EXPECT_EQ(config.experts.swiglu.limit, 7.0f);
  const auto refused = [&](const std::string& more, const char* sentence) {
    EXPECT_TRUE(fails_with([&] { parse(start + more + "}"); }, sentence)) << more;
  };
  refused("", "\"rope_scaling\" or \"rope_parameters\" is missing");
  refused(yarn + R"(,"num_experts_per_tok":200)", "\"num_experts_per_tok\" must be");
  refused(yarn + R"(,"swiglu_alpha":0)", "\"swiglu_alpha\" must be from");
  refused(yarn + R"(,"swiglu_limit":-7)", "\"swiglu_limit\" must be from");
  refused(yarn + R"(,"layer_types":["full_attention"])", "\"layer_types\" must list every layer");
  refused(yarn + R"(,"n_shared_experts":1)", "n_shared_experts is not supported");
  const ModelConfig packed = parse(start + yarn + R"(,"quantization_config":
      {"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]}})");
  EXPECT_EQ(packed.quantization.layout, WeightLayout::kMxfp4);
}

// Keys of experts: what is not computed, and what cannot be.
TEST(ModelConfig, ExpertsRefuseWhatTheyDoNotCompute) {
  using Changes = std::vector<std::pair<std::string, std::string>>;
  const auto refused = [](const char* model_type, Changes changes, const char* part) {
    changes.emplace_back("model_type", "\"" + std::string(model_type) + "\"");
    expect_refused(changes, part);
  };
  const std::pair<std::string, std::string> eight = {"num_local_experts", "8"};
  refused("mixtral", {{"num_local_experts", "0"}}, "\"num_local_experts\" must be");
  refused("mixtral", {{"num_local_experts", "1025"}}, "\"num_local_experts\" must be");
  refused("mixtral", {eight, {"num_experts_per_tok", "9"}}, "\"num_experts_per_tok\" must be");
  refused("mixtral", {eight, {"shared_expert_intermediate_size", "64"}}, "shared_expert_inter");
  refused("granitemoe", {eight, {"shared_intermediate_size", "64"}}, "shared_intermediate_size");
  refused("granitemoe", {eight, {"num_experts_per_tok", "0"}}, "\"num_experts_per_tok\" must be");
  refused("qwen2_moe", {{"moe_intermediate_size", "0"}}, "\"moe_intermediate_size\" must be");
  refused("qwen2_moe", {{"decoder_sparse_step", "0"}}, "\"decoder_sparse_step\" must be");
  refused("qwen2_moe", {{"mlp_only_layers", "[\"x\"]"}}, "\"mlp_only_layers\"");
  refused("qwen2_moe", {{"use_sliding_window", "true"}}, "needs layer_types");
  refused("qwen2_moe", {{"n_shared_experts", "2"}}, "n_shared_experts is not supported");
  refused("qwen3_moe", {{"num_experts", "4"}}, "\"num_experts_per_tok\" must be");  // 8 of them
  refused("qwen3_moe", {{"shared_expert_intermediate_size", "64"}}, "shared_expert_intermediate");
  refused("qwen3_moe", {{"scoring_func", "\"sigmoid\""}}, "scoring_func is not supported");
  const std::pair<std::string, std::string> routed = {"n_routed_experts", "8"};
  const std::pair<std::string, std::string> two = {"num_experts_per_tok", "2"};
  const std::pair<std::string, std::string> four_groups = {"n_group", "4"};
  refused("glm4_moe", {routed, two, {"n_group", "3"}}, "\"n_group\" does not cut");
  refused("glm4_moe", {routed, two, {"n_group", "8"}}, "\"n_group\" does not cut");
  refused("glm4_moe", {routed, two, four_groups, {"topk_group", "5"}}, "\"topk_group\" must be");
  refused("glm4_moe",
          {routed, {"num_experts_per_tok", "3"}, four_groups, {"topk_group", "1"}},
          "\"topk_group\" groups hold fewer experts");
  refused("glm4_moe", {routed, two, {"routed_scaling_factor", "0"}}, "routed_scaling_factor");
  refused("glm4_moe", {routed, two, {"n_shared_experts", "65"}}, "\"n_shared_experts\" must be");
  refused("glm4_moe", {routed, two, {"first_k_dense_replace", "-1"}}, "first_k_dense_replace");
  const std::pair<const char*, const char*> minimax[] = {{"attn_type_list", "[1,0,1]"},
                                                         {"shared_intermediate_size", "64"},
                                                         {"layernorm_full_attention_beta", "2"},
                                                         {"layernorm_linear_attention_beta", "2"},
                                                         {"layernorm_mlp_beta", "2"},
                                                         {"use_qk_norm", "false"},
                                                         {"qk_norm_type", "\"per_head\""},
                                                         {"scoring_func", "\"softmax\""},
                                                         {"use_routing_bias", "false"},
                                                         {"rotary_dim", "1000"}};
  for (const auto& [key, value] : minimax) refused("minimax_m2", {eight, {key, value}}, key);
}

}  // namespace
}  // namespace outrider
