// A model's shape and switches, read from a Hugging Face config.json. The only file that knows its
// key names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/checkpoint/quantization_config.h"
#include "runtime/ops/tensor.h"

namespace outrider {

// kDynamic differs from kNone only beyond max_positions, where this runtime does not go: the
// stretch there depends on the sequence's length, so keys already cached would have to be rotated
// again.
enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn };

struct RopeConfig {
  double theta = 10000.0;
  int32_t rotary_dim = 0;  // <= head_dim, even
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0;        // yarn
  double beta_slow = 1.0;         // yarn
  double attention_factor =
      1.0;                    // factor on cos and sin; yarn's is computed when the file has none
  bool yarn_truncate = true;  // yarn: round the ramp's ends to whole dimensions
  int32_t original_max_positions = 0;
};

struct ModelConfig {
  std::string model_type;  // llama, mistral, qwen2, qwen3
  int32_t n_layers = 0;
  int32_t hidden_dim = 0;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_positions = 0;
  float norm_eps = 1e-5f;
  bool attention_bias = false;  // on q, k, v
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // rms norm per head on q and k, before rope
  bool tied_head = false;
  int32_t sliding_window = 0;        // 0 = none
  int32_t first_windowed_layer = 0;  // layers from here on use the window
  int32_t undecided_window = 0;      // 0, or no longer context is served: llama with sliding_window
  RopeConfig rope;
  ops::DType dtype = ops::DType::kBF16;  // what the file says; weights keep the file's own type
  QuantizationConfig quantization;       // how the file keeps projections, when in integers
  // What float projections are rounded to as they are loaded; bits 0: to nothing.
  ops::QuantFormat load_format;
  std::vector<int32_t> eos_token_ids;  // config.json and generation_config.json, ascending
  int32_t bos_token_id = -1;

  // Whether there may be matrices of integers: then inner dimensions are cut at their blocks.
  bool is_quantized() const {
    return load_format.bits != 0 || quantization.layout != WeightLayout::kPlain;
  }
};

// Reads config.json (and the end tokens of generation_config.json). Throws Error naming the file,
// the key and what is wrong; an unknown model_type is named with the known ones.
ModelConfig load_model_config(const std::filesystem::path& model_dir);

// Sampling defaults of generation_config.json; absent values keep what they were.
struct GenerationDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
};
GenerationDefaults load_generation_defaults(const std::filesystem::path& model_dir);

}  // namespace outrider
