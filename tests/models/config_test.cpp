// config.json and generation_config.json: both spellings of every family, and one sentence for what
// is wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/families/families.h"
#include "models/forward/rope_frequencies.h"
#include "runtime/base/error.h"
#include "tests/models/config_test_util.h"

namespace outrider {
namespace {

using namespace test;

TEST(ModelConfig, ReadsAPlainLlama) {
  const ModelConfig config = with({});
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.n_layers, 5);
  EXPECT_EQ(config.hidden_dim, 64);
  EXPECT_EQ(config.n_heads, 8);
  EXPECT_EQ(config.n_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.ffn_dim, 172);
  EXPECT_EQ(config.vocab_size, 512);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
  EXPECT_FALSE(config.attention_bias || config.attention_out_bias || config.mlp_bias);
  EXPECT_FALSE(config.qk_norm || config.tied_head);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.dtype, ops::DType::kBF16);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(config.bos_token_id, -1);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config.rope.theta, 10'000.0);
  EXPECT_EQ(config.rope.rotary_dim, 8);
}

TEST(ModelConfig, FamiliesDifferAsHuggingFaceSays) {
  EXPECT_TRUE(with({{"attention_bias", "true"}}).attention_out_bias);
  EXPECT_TRUE(with({{"mlp_bias", "true"}}).mlp_bias);
  EXPECT_EQ(with({{"num_key_value_heads", ""}}).n_kv_heads, 8);
  EXPECT_EQ(with({{"num_key_value_heads", "null"}}).n_kv_heads, 8);
  EXPECT_EQ(with({{"head_dim", "32"}}).head_dim, 32);
  EXPECT_EQ(with({{"head_dim", "null"}}).head_dim, 8);
  EXPECT_TRUE(with({{"tie_word_embeddings", "true"}}).tied_head);

  const ModelConfig qwen2 = with({{"model_type", "\"qwen2\""}});
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.attention_out_bias);
  const ModelConfig qwen3 = with({{"model_type", "\"qwen3\""}});
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.attention_bias);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(with({{"model_type", "\"qwen3\""}, {"attention_bias", "true"}}).attention_out_bias);
}

TEST(ModelConfig, SlidingWindows) {
  const std::pair<std::string, std::string> mistral = {"model_type", "\"mistral\""};
  EXPECT_EQ(with({mistral, {"sliding_window", "12"}}).sliding_window, 12);
  EXPECT_EQ(with({mistral, {"sliding_window", "null"}}).sliding_window, 0);
  EXPECT_EQ(with({mistral}).sliding_window, 4096);
  EXPECT_EQ(with({{"sliding_window", "12"}}).sliding_window, 0);  // llama has none of its own

  const std::pair<std::string, std::string> qwen = {"model_type", "\"qwen2\""};
  const std::pair<std::string, std::string> used = {"use_sliding_window", "true"};
  const std::pair<std::string, std::string> window = {"sliding_window", "12"};
  EXPECT_EQ(with({qwen, window, {"max_window_layers", "2"}}).sliding_window, 0);
  const ModelConfig from_two = with({qwen, used, window, {"max_window_layers", "2"}});
  EXPECT_EQ(from_two.sliding_window, 12);
  EXPECT_EQ(from_two.full_layers, (std::vector<bool>{true, true, false, false, false}));
  EXPECT_EQ(from_two.window_of(1), 0);
  EXPECT_EQ(from_two.window_of(2), 12);
  EXPECT_EQ(with({qwen, used, window}).sliding_window,
            0);  // the default, 28, is beyond the last layer
  const auto types = [](const char* letters) {
    std::string list;
    for (const char* letter = letters; *letter != 0; ++letter) {
      list += (list.empty() ? "[" : ",") +
              std::string(*letter == 'f' ? "\"full_attention\"" : "\"sliding_attention\"");
    }
    return std::pair<std::string, std::string>("layer_types", list + "]");
  };
  const auto full_of = [&](const char* letters) {
    return with({qwen, used, window, types(letters)}).full_layers;
  };
  EXPECT_EQ(full_of("fffss"), (std::vector<bool>{true, true, true, false, false}));
  EXPECT_EQ(full_of("fsfss"), (std::vector<bool>{true, false, true, false, false}));
  EXPECT_EQ(with({qwen, used, window, types("fffff")}).sliding_window, 0);
  expect_refused({qwen, used, window, types("fss")}, "must list every layer");
  expect_refused({qwen, used, window, {"layer_types", "[1,2,3,4,5]"}}, "something other than");
}

TEST(ModelConfig, WindowsThatProgramsReadInDifferentWays) {
  const std::pair<std::string, std::string> window = {"sliding_window", "12"};
  const std::string full = R"("full_attention")", sliding = R"("sliding_attention")";
  const auto types = [](const std::string& last, const std::string& others) {
    const std::string list = others + "," + others + "," + others + "," + others + "," + last;
    return std::pair<std::string, std::string>("layer_types", "[" + list + "]");
  };
  EXPECT_EQ(with({window}).undecided_window, 12);
  EXPECT_EQ(with({window, types(sliding, full)}).undecided_window, 12);
  EXPECT_EQ(with({window, types(full, full)}).undecided_window, 0);
  EXPECT_EQ(with({window, {"use_sliding_window", "false"}}).undecided_window, 0);
  EXPECT_EQ(with({{"sliding_window", "null"}}).undecided_window, 0);
  EXPECT_EQ(with({{"model_type", "\"qwen2\""}, window}).undecided_window, 0);

  const std::pair<std::string, std::string> mistral = {"model_type", "\"mistral\""};
  const std::pair<std::string, std::string> none = {"sliding_window", "null"};
  EXPECT_EQ(with({mistral, window, types(sliding, sliding)}).sliding_window, 12);
  EXPECT_EQ(with({mistral, none, types(full, full)}).sliding_window, 0);
  expect_refused({mistral, window, types(full, sliding)}, "say different things");
  expect_refused({mistral, none, types(sliding, full)}, "say different things");
  expect_refused({types("\"chunked_attention\"", full)}, "something other than full_attention");
}

TEST(ModelConfig, RopeInBothForms) {
  const std::string body =
      R"("factor":8.0,"low_freq_factor":1.5,"high_freq_factor":4.5,"original_max_position_embeddings":64)";
  const ModelConfig forms[] = {
      with(
          {{"rope_theta", "500000.0"}, {"rope_scaling", R"({"rope_type":"llama3",)" + body + "}"}}),
      with({{"rope_theta", "500000.0"}, {"rope_scaling", R"({"type":"llama3",)" + body + "}"}}),
      with({{"rope_parameters", R"({"rope_type":"llama3","rope_theta":500000.0,)" + body + "}"}})};
  for (const ModelConfig& config : forms) {
    EXPECT_EQ(config.rope.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(config.rope.theta, 500'000.0);
    EXPECT_EQ(config.rope.factor, 8.0);
    EXPECT_EQ(config.rope.low_freq_factor, 1.5);
    EXPECT_EQ(config.rope.high_freq_factor, 4.5);
    EXPECT_EQ(config.rope.original_max_positions, 64);
  }
  const auto scaled = [](const std::string& fields) {
    return with({{"rope_scaling", fields}}).rope;
  };
  EXPECT_EQ(with({{"rope_scaling", "null"}}).rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(scaled(R"({"rope_type":"default"})").scaling, RopeScaling::kNone);
  EXPECT_EQ(scaled(R"({"type":"linear","factor":2})").scaling, RopeScaling::kLinear);
  EXPECT_EQ(scaled(R"({"type":"dynamic","factor":2.0})").scaling, RopeScaling::kDynamic);
}

TEST(ModelConfig, YarnAttentionFactor) {
  const auto factor_of = [](const std::string& more) {
    return with({{"rope_scaling",
                  R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":128)" + more +
                      "}"}})
        .rope.attention_factor;
  };
  EXPECT_NEAR(factor_of(""), 0.1 * std::log(4.0) + 1.0, 1e-12);
  EXPECT_NEAR(factor_of(R"(,"attention_factor":1.25)"), 1.25, 1e-12);
  EXPECT_NEAR(factor_of(R"(,"mscale":1.0,"mscale_all_dim":0.5)"),
              (0.1 * std::log(4.0) + 1.0) / (0.05 * std::log(4.0) + 1.0),
              1e-12);
  // Without a factor it is the ratio of the two lengths.
  const auto rope =
      with({{"rope_scaling", R"({"type":"yarn","original_max_position_embeddings":128})"}}).rope;
  EXPECT_EQ(rope.factor, 4.0);
}

TEST(ModelConfig, EndTokens) {
  const auto ids = [](const char* config, const char* generation) {
    return parse(config_text({{"eos_token_id", config}}), generation).eos_token_ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ids("[9,3,3]", ""), (Ids{3, 9}));
  EXPECT_EQ(ids("null", ""), Ids{});
  EXPECT_EQ(ids("2", R"({"eos_token_id":[7,5]})"), (Ids{5, 7}));
  EXPECT_EQ(ids("2", R"({"eos_token_id":null})"), Ids{2});
  EXPECT_EQ(ids("2", R"({"top_k":5})"), Ids{2});
  EXPECT_THROW(ids("2", R"({"eos_token_id":"x"})"), Error);
  EXPECT_THROW(ids("2", R"({"eos_token_id":2)"), Error);
  expect_refused({{"eos_token_id", "-1"}}, "eos_token_id");
  expect_refused({{"eos_token_id", "[1.5]"}}, "eos_token_id");
  expect_refused({{"eos_token_id", "4294967298"}}, "eos_token_id");
}

TEST(ModelConfig, RefusesQuantisationsItDoesNotKnow) {
  const auto refused = [](const char* json, const char* sentence) {
    expect_refused({{"quantization_config", json}}, sentence);
  };
  const char* known = "known are gptq, awq, compressed-tensors, mxfp4 and fp8";
  refused(R"({"quant_method":"fp8"})", "fp8 without \"weight_block_size\"");
  refused(R"({"quant_method":"fp8","fmt":"e5m2"})", "fp8 in \"e5m2\"");
  for (const char* size : {"128", "[128]", "[128,0]", "[-1,128]", "[128,1.5]", "[1,1,1]"}) {
    const auto json = fmt::format(R"({{"quant_method":"fp8","weight_block_size":{}}})", size);
    refused(json.c_str(), "\"weight_block_size\" must list two numbers");
  }
  refused(R"({"quant_method":"bitsandbytes","load_in_4bit":true})", known);
  refused(R"({"quant_method":"modelopt"})", known);
  refused("[]", "\"quantization_config\" must be an object");
  refused(R"({"quant_method":5})", "\"quant_method\" must be a text");
  refused(R"({"quant_method":"gptq","bits":3,"group_size":128})", "weights of 3 bits");
  refused(R"({"quant_method":"gptq","group_size":128})", "an unknown number of bits");
  refused(R"({"quant_method":"gptq","bits":4,"group_size":0})", "\"group_size\" must be -1 or");
  refused(R"({"quant_method":"gptq","bits":4,"group_size":-128})", "\"group_size\" must be -1 or");
  refused(R"({"quant_method":"gptq","bits":4,"group_size":9999999999})", "\"group_size\" must be");
  refused(R"({"quant_method":"gptq","bits":4,"group_size":"x"})", "must be a whole number");
  refused(R"({"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"})", "\"marlin\"");
  refused(R"({"quant_method":"awq","bits":8,"group_size":128})", "weights of 8 bits");
  refused(R"({"quant_method":"awq","bits":4,"version":"gemv"})", "AWQ version \"gemv\"");
  const auto compressed =
      [&](const std::string& format, const std::string& weights, const char* sentence) {
        const std::string json = R"({"quant_method":"compressed-tensors","format":")" + format +
                                 R"(","config_groups":{"group_0":{"weights":{)" + weights + "}}}}";
        expect_refused({{"quantization_config", json}}, sentence);
      };
  compressed("float-quantized", R"("num_bits":8,"type":"float")", "\"float-quantized\"");
  compressed("nvfp4-pack-quantized", R"("num_bits":4)", "\"nvfp4-pack-quantized\"");
  compressed("int-quantized", R"("num_bits":4)", "must be in format pack-quantized");
  compressed("pack-quantized", R"("num_bits":8,"type":"float")", "weights of type \"float\"");
  compressed("pack-quantized", R"("num_bits":4,"strategy":"block")", "strategy \"block\"");
  compressed("pack-quantized", R"("num_bits":2)", "weights of 2 bits");
  refused(R"({"quant_method":"compressed-tensors","format":"int-quantized"})",
          "\"config_groups\" must be an object");
  refused(R"({"quant_method":"compressed-tensors","format":"int-quantized",
              "config_groups":{"a":{},"b":{}}})",
          "has 2 groups");
  refused(R"({"quant_method":"compressed-tensors","format":"pack-quantized",
              "transform_config":{"config_groups":{"a":{"apply":[{"location":"weight_input"},
                                                                {"location":"k_cache"}]}}}})",
          "transforms at \"k_cache\" are not supported");
}

TEST(ModelConfig, RefusesWhatItDoesNotKnow) {
  expect_refused({{"model_type", "\"mamba\""}},
                 "model_type \"mamba\" is not known; known are llama");
  expect_refused({{"model_type", ""}}, "model_type \"\" is not known");
  expect_refused({{"model_type", "5"}}, "\"model_type\" must be a text");
  expect_refused({{"hidden_act", "\"xielu\""}}, "hidden_act \"xielu\" is not supported");
  expect_refused({{"quantization_config", "{}"}}, "quantization_config is not supported");
  expect_refused({{"use_mrope", "true"}}, "use_mrope is not supported");
  expect_refused({{"rope_interleaved", "true"}}, "rope_interleaved is not supported");
  expect_refused({{"is_causal", "false"}}, "is_causal false is not supported");
  expect_refused({{"use_bidirectional_attention", "true"}}, "use_bidirectional_attention is not");
  for (const char* key : {"logits_scaling", "logit_scale", "embedding_multiplier"}) {
    expect_refused({{key, "8.0"}}, std::string(key) + " other than 1 is not supported");
    with({{key, "1.0"}});
    with({{key, "null"}});
  }
  for (const char* key : {"final_logit_softcapping", "attention_multiplier", "clip_qkv"}) {
    expect_refused({{key, "30.0"}}, std::string(key) + " is not supported");
    with({{key, "null"}});
  }
  with({{"is_causal", "true"}, {"attention_dropout", "0.1"}, {"pretraining_tp", "2"}});
  // What no reader knows is refused by name, unless it says nothing or is a note of a program.
  expect_refused({{"num_experts", "8"}}, "num_experts is not supported for model_type llama");
  expect_refused({{"a_new_key", "\"x\""}}, "a_new_key is not supported for model_type llama");
  expect_refused({{"residual_multiplier", "0.5"}}, "residual_multiplier other than 1");
  with({{"a_new_key", "null"}, {"b", "false"}, {"c", "[]"}, {"d", "{}"}, {"e", "\"\""}});
  with({{"_name_or_path", "\"x\""}, {"unsloth_version", "\"2026.1\""}, {"id2label", "{\"0\":1}"}});
  expect_refused({{"rope_scaling", R"({"type":"linear","factor":2,"section":[1,2]})"}},
                 "section is not supported");
  expect_refused({{"auto_map", "{\"AutoModel\":\"x\"}"}}, "auto_map is not supported");
  expect_refused({{"partial_rotary_factor", "0.5"}}, "partial_rotary_factor");
  expect_refused({{"architectures", "[\"LlamaForSequenceClassification\"]"}}, "architectures");
  expect_refused({{"torch_dtype", "\"float8\""}}, "dtype \"float8\" is not supported");
  expect_refused({{"rope_scaling", R"({"type":"su","factor":2})"}}, "rope type \"su\"");
  expect_refused({{"rope_scaling", R"({"type":"longrope","factor":2})"}},
                 "\"short_factor\" must list");
  expect_refused({{"rope_scaling", R"({"type":"mrope","mrope_section":[1,2]})"}}, "mrope_section");
  expect_refused({{"rope_parameters", R"({"full_attention":{},"sliding_attention":{}})"}},
                 "one rope per kind of layer");
  expect_refused({{"rope_scaling", "7"}}, "must be an object");
  expect_refused({{"rope_scaling", R"({"type":"linear"})"}}, "\"factor\" is missing");
  expect_refused({{"rope_scaling", R"({"type":"linear","factor":0})"}}, "\"factor\" must be from");
  expect_refused({{"rope_scaling",
                   R"({"type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4})"}},
                 "must be larger");
}

// Settings of other families that are not computed, each by name.
TEST(ModelConfig, FamiliesRefuseWhatTheyDoNotCompute) {
  const auto refused = [](const char* model_type, const char* key, const char* value) {
    std::string sentence;
    try {
      std::vector<std::pair<std::string, std::string>> changes = {
          {"model_type", "\"" + std::string(model_type) + "\""}, {key, value}};
      if (model_type == std::string("gpt2")) {
        changes.insert(changes.end(), {{"n_embd", "64"}, {"n_layer", "2"}, {"n_head", "4"}});
      }
      if (model_type == std::string("opt")) changes.emplace_back("ffn_dim", "64");
      changes.insert(changes.begin(), {"num_key_value_heads", "8"});
      with(changes);
    } catch (const Error& error) {
      sentence = error.what();
    }
    EXPECT_NE(sentence.find(key), std::string::npos) << model_type << ": " << sentence;
  };
  refused("gpt2", "scale_attn_by_inverse_layer_idx", "true");
  refused("gpt2", "add_cross_attention", "true");
  refused("opt", "do_layer_norm_before", "false");
  refused("opt", "word_embed_proj_dim", "32");
  refused("opt", "_remove_final_layer_norm", "true");
  refused("gemma2", "use_bidirectional_attention", "true");
  refused("gemma3_text", "use_bidirectional_attention", "true");
  refused("phi3", "mlp_bias", "true");
  refused("cohere2", "use_qk_norm", "true");
  refused("starcoder2", "norm_type", "\"rms_norm\"");
  refused("granite", "num_local_experts", "4");
  refused("olmo2", "clip_qkv", "8.0");
  refused("glm4", "first_k_dense_replace", "1");
  refused("qwen3", "mlp_only_layers", "[1]");
  refused("deepseek_v3", "scoring_func", "\"softmax\"");
  refused("deepseek_v3", "topk_method", "\"group_limited_greedy\"");
  refused("deepseek_v3", "moe_layer_freq", "2");
  refused("deepseek_v3", "num_key_value_heads", "2");
  refused("deepseek_v3", "v_head_dim", "7");
  refused("deepseek_v3", "q_lora_rank", "0");
  refused("kimi_k2", "sliding_window", "12");
}

// The text part of a model that sees: what it lacks is read beside it.
TEST(ModelConfig, TextPartOfAModelThatSees) {
  const ModelConfig config = parse(
      R"({"model_type":"gemma3","architectures":["Gemma3ForConditionalGeneration"],
          "eos_token_id":[1,106],"dtype":"bfloat16","vision_config":{"hidden_size":3},
          "text_config":{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":80,
                         "num_hidden_layers":6,"sliding_window":12}})");
  EXPECT_EQ(config.model_type, "gemma3_text");
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(config.dtype, ops::DType::kBF16);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.full_layers, (std::vector<bool>{false, false, false, false, false, true}));
}

TEST(ModelConfig, RefusesSizesOutOfRange) {
  for (const char* key : {"hidden_size",
                          "intermediate_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "vocab_size",
                          "max_position_embeddings"}) {
    expect_refused({{key, ""}}, std::string("\"") + key + "\" is missing");
    for (const char* wrong : {"0",
                              "-1",
                              "1e30",
                              "4.5",
                              "true",
                              "\"8\"",
                              "[8]",
                              "99999999999",
                              "18446744073709551615"}) {
      expect_refused({{key, wrong}}, std::string("\"") + key + "\" must be");
    }
  }
  expect_refused({{"num_hidden_layers", "1025"}}, "num_hidden_layers");
  expect_refused({{"hidden_size", "65537"}}, "hidden_size");
  expect_refused({{"vocab_size", "2000001"}}, "vocab_size");
  expect_refused({{"num_key_value_heads", "3"}}, "does not divide");
  expect_refused({{"num_attention_heads", "12"}}, "does not divide hidden_size 64");
  expect_refused({{"head_dim", "7"}}, "must be even");
  expect_refused({{"hidden_size", "24"}}, "must be even");
  expect_refused({{"head_dim", "0"}}, "head_dim");
  expect_refused({{"rms_norm_eps", "0"}}, "rms_norm_eps");
  expect_refused({{"rms_norm_eps", "-1e-5"}}, "rms_norm_eps");
  expect_refused({{"rope_theta", "0"}}, "rope_theta");
  expect_refused({{"rope_theta", "-5"}}, "rope_theta");
  expect_refused({{"rope_theta", "1"}}, "rope_theta");
  expect_refused({{"tie_word_embeddings", "1"}}, "must be true or false");
}

TEST(ModelConfig, RefusesBrokenFiles) {
  const TempDir dir;
  EXPECT_THROW(load_model_config(dir.path()), Error);
  for (const std::string& text :
       {std::string(),
        std::string("{"),
        std::string("[]"),
        std::string("null"),
        std::string("{}"),
        config_text() + "x",
        std::string(200'000, '['),
        config_text({{"a", std::string(50, '[')}}),
        std::string("{\"model_type\":\"llama\",\"model_type\":\"llama\"}"),
        config_text({{"rope_theta", "1e999"}}),
        config_text({{"rope_theta", "NaN"}})}) {
    EXPECT_THROW(parse(text), Error) << text.substr(0, 60);
  }
  EXPECT_THROW(parse("{\"a\":\"" + std::string(5'000'000, 'x') + "\"}"), Error);
}

TEST(ModelConfig, MutatedFilesNeverCrash) {
  const std::string good = config_text(
      {{"rope_scaling", R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":128})"},
       {"layer_types", R"(["full_attention"])"}});
  uint32_t seed = 99;
  const auto next = [&seed](size_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
  };
  const TempDir dir;
  const std::string alphabet("0123456789{}[]\":,.-e\\\0\xffn", 24);
  int num_refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (size_t edits = 1 + next(3); edits > 0; --edits) {
      const size_t at = next(bytes.size());
      switch (next(3)) {
        case 0:
          bytes[at] = alphabet[next(alphabet.size())];
          break;
        case 1:
          bytes.erase(at, 1 + next(6));
          break;
        default:
          bytes.insert(at, bytes.substr(next(bytes.size()), next(20)));
      }
    }
    dir.write("config.json", bytes);
    try {
      const ModelConfig config = load_model_config(dir.path());
      ASSERT_EQ(config.n_heads % config.n_kv_heads, 0);
      ASSERT_GT(config.head_dim, 0);
      for (const float frequency : rope_frequencies(config.rope))
        ASSERT_TRUE(std::isfinite(frequency));
    } catch (const Error&) {
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 500);
  EXPECT_LT(num_refused, 2000);
}

TEST(GenerationDefaults, ReadsAndChecks) {
  const TempDir dir;
  EXPECT_EQ(load_generation_defaults(dir.path()).top_p, 1.0f);
  dir.write(
      "generation_config.json",
      R"({"temperature":0.6,"top_p":0.9,"top_k":40,"min_p":0.05,"repetition_penalty":1.1,"do_sample":true})");
  const GenerationDefaults defaults = load_generation_defaults(dir.path());
  EXPECT_FLOAT_EQ(defaults.temperature, 0.6f);
  EXPECT_FLOAT_EQ(defaults.top_p, 0.9f);
  EXPECT_EQ(defaults.top_k, 40);
  EXPECT_FLOAT_EQ(defaults.min_p, 0.05f);
  EXPECT_FLOAT_EQ(defaults.repetition_penalty, 1.1f);
  for (const char* wrong :
       {R"({"top_p":2})", R"({"top_k":-1})", R"({"temperature":"x"})", R"({"min_p":-0.1})"}) {
    dir.write("generation_config.json", wrong);
    EXPECT_THROW(load_generation_defaults(dir.path()), Error) << wrong;
  }
}

RopeConfig rope_of(RopeScaling scaling) {
  RopeConfig rope;
  rope.theta = 10'000.0;
  rope.rotary_dim = 64;
  rope.scaling = scaling;
  rope.factor = 8.0;
  rope.original_max_positions = 8192;
  return rope;
}

TEST(RopeFrequencies, ScalingsKeepFastPairsAndStretchSlowOnes) {
  const auto plain = rope_frequencies(rope_of(RopeScaling::kNone));
  ASSERT_EQ(plain.size(), 32u);
  EXPECT_EQ(plain[0], 1.0f);
  EXPECT_NEAR(plain[16], 0.01, 1e-8);
  const auto linear = rope_frequencies(rope_of(RopeScaling::kLinear));
  for (size_t i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(linear[i], plain[i] / 8.0f);
  EXPECT_EQ(rope_frequencies(rope_of(RopeScaling::kDynamic)), plain);
  for (const RopeScaling scaling : {RopeScaling::kLlama3, RopeScaling::kYarn}) {
    const auto scaled = rope_frequencies(rope_of(scaling));
    EXPECT_EQ(scaled[0], plain[0]);
    EXPECT_FLOAT_EQ(scaled[31], plain[31] / 8.0f);
    int num_between = 0;
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_LE(scaled[i], plain[i]);
      EXPECT_GE(scaled[i], plain[i] / 8.0f * 0.99999f);
      num_between += scaled[i] < plain[i] * 0.999f && scaled[i] > plain[i] / 8.0f * 1.001f;
    }
    EXPECT_GT(num_between, 2);
  }
}

}  // namespace
}  // namespace outrider
