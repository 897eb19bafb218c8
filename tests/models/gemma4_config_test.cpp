// What differs between the layers of gemma4_text, in both forms of its config.json.
#include <gtest/gtest.h>

#include <cmath>

#include "models/families/families.h"
#include "models/forward/rope_frequencies.h"
#include "runtime/base/error.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

const std::string kSizes = R"("vocab_size":512,"vocab_size_per_layer_input":512)";

// 4 layers, of which the second and the last see everything; more: members of config.json.
ModelConfig gemma4(const std::string& more, const std::string& sizes = kSizes) {
  const test::TempDir dir;
  dir.write("config.json",
            R"({"model_type":"gemma4_text","hidden_size":64,
      "intermediate_size":172,"num_hidden_layers":4,"num_attention_heads":8,
      "num_key_value_heads":4,"head_dim":16,"sliding_window":12,
      "layer_types":["sliding_attention","full_attention",
      "sliding_attention","sliding_attention"],)" +
                sizes + more + "}");
  return load_model_config(dir.path());
}

TEST(Gemma4Config, SizesByLayer) {
  const ModelConfig config = gemma4("");
  EXPECT_EQ(config.full_layers, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(config.head_dim_of(0), 16);
  EXPECT_EQ(config.head_dim_of(1), 512);
  EXPECT_EQ(config.n_kv_heads_of(1), 4);
  EXPECT_EQ(config.rope.rotary_dim, 512);
  EXPECT_EQ(config.local_rope->rotary_dim, 16);
  EXPECT_EQ(config.per_layer_dim, 256);
  EXPECT_EQ(config.per_layer_scale, 16.0f);
  EXPECT_EQ(config.attention_scale, 1.0f);
  EXPECT_FALSE(config.norm_plus_one);
  const auto frequencies = rope_frequencies(config.rope);
  EXPECT_EQ(frequencies[0], 1.0f);
  EXPECT_FLOAT_EQ(frequencies[63], static_cast<float>(std::pow(1e6, -126.0 / 512)));
  EXPECT_EQ(frequencies[64], 0.0f);

  const std::string two = R"(,"num_global_key_value_heads":2)";
  EXPECT_EQ(gemma4(two).n_kv_heads_of(1), 4);  // counts with attention_k_eq_v alone
  const ModelConfig k_is_v = gemma4(two + R"(,"attention_k_eq_v":true)");
  EXPECT_EQ(k_is_v.n_kv_heads_of(1), 2);
  EXPECT_EQ(k_is_v.n_kv_heads_of(2), 4);
  EXPECT_TRUE(k_is_v.of_layer(1).names.v.empty());
  EXPECT_EQ(k_is_v.of_layer(2).names.v, k_is_v.names.v);

  const ModelConfig shared = gemma4(R"(,"num_kv_shared_layers":2,"use_double_wide_mlp":true)");
  EXPECT_EQ(shared.kv_layer_of(1), 1);
  EXPECT_EQ(shared.kv_layer_of(2), 0);
  EXPECT_EQ(shared.kv_layer_of(3), 1);
  EXPECT_EQ(shared.ffn_dim_of(1), 172);
  EXPECT_EQ(shared.ffn_dim_of(2), 344);
  EXPECT_EQ(gemma4(R"(,"hidden_size_per_layer_input":null)").per_layer_dim, 0);
  const ModelConfig experts = gemma4(
      R"(,"enable_moe_block":true,"num_experts":8,"top_k_experts":3,"moe_intermediate_size":20)");
  EXPECT_EQ(experts.experts.per_row, 3);
  EXPECT_TRUE(experts.has_experts(0) && experts.experts.beside_mlp);
  EXPECT_EQ(gemma4(R"(,"num_experts":8)").experts.count, 0);
}

void expect_refused(const std::string& more,
                    const std::string& part,
                    const std::string& sizes = kSizes) {
  try {
    gemma4(more, sizes);
    ADD_FAILURE() << "not refused: " << more;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Gemma4Config, RefusesByNameWhatIsNotComputed) {
  expect_refused(R"(,"use_bidirectional_attention":"all")", "use_bidirectional_attention");
  EXPECT_NO_THROW(gemma4(R"(,"use_bidirectional_attention":"vision")"));   // there is none
  expect_refused(R"(,"num_kv_shared_layers":3)", "num_kv_shared_layers");  // no full one is left
  expect_refused("",
                 "vocab_size_per_layer_input other than vocab_size",
                 R"("vocab_size":512,"vocab_size_per_layer_input":100)");
  expect_refused(R"(,"query_pre_attn_scalar":256)", "query_pre_attn_scalar");
  expect_refused(R"(,"rope_parameters":{"rope_type":"default"})", "full_attention");
  expect_refused(R"(,"enable_moe_block":true)", "num_experts");
}

// What transformers 5.24 writes in place of global_head_dim.
TEST(Gemma4Config, LayersOneByOne) {
  const auto layers = [](const std::string& text) { return ",\"per_layer_config\":" + text; };
  const ModelConfig config = gemma4(layers(
      R"({"01":{"head_dim":32,"num_key_value_heads":2},"3":{"head_dim":32,"num_key_value_heads":2}})"));
  EXPECT_EQ(config.head_dim_of(1), 32);
  EXPECT_EQ(config.n_kv_heads_of(3), 2);
  EXPECT_EQ(config.head_dim_of(2), 16);
  EXPECT_EQ(gemma4(layers("{}")).head_dim_of(1), 16);
  const auto refused = [&](const std::string& text, const std::string& part) {
    expect_refused(layers(text), part);
  };
  refused(R"({"1":{"head_dim":32}})", "layers of one kind that differ");
  refused(R"({"0":{"head_dim":32}})", "layers of one kind that differ");
  refused(R"({"4":{"head_dim":32}})", "other than layers");
  refused(R"({"x":{"head_dim":32}})", "other than layers");
  refused(R"({"3":{"skip":["mlp"]}})", "skip is not supported");
  refused(R"({"1":{"num_key_value_heads":3},"3":{"num_key_value_heads":3}})", "do not divide");
}

}  // namespace
}  // namespace outrider
