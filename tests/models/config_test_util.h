// Shared by the tests of config.json: texts of it, and what is refused.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "tests/models/model_test_util.h"

namespace outrider::test {

// A llama config with members added or replaced: each is `"key": value`.
inline std::string config_text(
    const std::vector<std::pair<std::string, std::string>>& changes = {}) {
  std::vector<std::pair<std::string, std::string>> members = {{"model_type", "\"llama\""},
                                                              {"hidden_size", "64"},
                                                              {"intermediate_size", "172"},
                                                              {"num_hidden_layers", "5"},
                                                              {"num_attention_heads", "8"},
                                                              {"num_key_value_heads", "4"},
                                                              {"vocab_size", "512"},
                                                              {"max_position_embeddings", "512"},
                                                              {"rms_norm_eps", "1e-05"},
                                                              {"hidden_act", "\"silu\""},
                                                              {"torch_dtype", "\"bfloat16\""},
                                                              {"eos_token_id", "2"}};
  for (const auto& [key, value] : changes) {
    std::erase_if(members, [&key = key](const auto& member) { return member.first == key; });
    if (!value.empty()) members.emplace_back(key, value);
  }
  std::string text = "{";
  for (const auto& [key, value] : members) {
    text += (text.size() > 1 ? ",\"" : "\"") + key + "\":" + value;
  }
  return text + "}";
}

inline ModelConfig parse(const std::string& text, const std::string& generation = "") {
  const TempDir dir;
  dir.write("config.json", text);
  if (!generation.empty()) dir.write("generation_config.json", generation);
  return load_model_config(dir.path());
}

inline ModelConfig with(const std::vector<std::pair<std::string, std::string>>& changes) {
  return parse(config_text(changes));
}

inline void expect_refused(const std::vector<std::pair<std::string, std::string>>& changes,
                           const std::string& part) {
  try {
    with(changes);
    ADD_FAILURE() << "not refused: " << part;
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find(part), std::string::npos) << what;
    EXPECT_NE(what.find("config.json"), std::string::npos) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

}  // namespace outrider::test
