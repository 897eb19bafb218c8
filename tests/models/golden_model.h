// The tiny models of tests/golden/models and what transformers computes with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/models/model_test_util.h"

namespace outrider::test {

struct Golden {
  std::filesystem::path dir;
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<int32_t> positions;
  std::vector<float> logits;  // [positions, vocab]
  ModelConfig config;

  explicit Golden(const std::string& name)
      : dir(golden_dir() / name), config(load_model_config(dir)) {
    const auto json = nlohmann::json::parse(read_bytes(dir / "golden.json"));
    config.served_positions = json.value("max_model_len", 0);
    prompt = json.at("prompt").get<std::vector<int32_t>>();
    greedy = json.at("greedy").get<std::vector<int32_t>>();
    positions = json.at("logit_positions").get<std::vector<int32_t>>();
    const std::string raw = read_bytes(dir / "logits.f32");
    logits.resize(raw.size() / sizeof(float));
    std::memcpy(logits.data(), raw.data(), raw.size());
  }

  // Prompt and continuation without the last token: the positions the reference computed.
  std::vector<int32_t> text() const {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), greedy.begin(), greedy.end() - 1);
    return all;
  }
};

// Largest difference relative to the largest reference logit; infinite when anything is not finite.
inline double relative_error(std::span<const float> got, std::span<const float> expected) {
  double error = 0.0;
  double scale = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!std::isfinite(difference)) return HUGE_VAL;
    error = std::max(error, difference);
    scale = std::max(scale, std::abs(static_cast<double>(expected[i])));
  }
  return error / scale;
}

}  // namespace outrider::test
