// See folder.h.
#include "models/synthetic/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "models/checkpoint/checkpoint_plan.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/safetensors_writer.h"
#include "models/synthetic/tokenizer.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"
#include "runtime/base/files/new_file.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPieceBytes = int64_t{8} << 20;  // of one thread
constexpr unsigned kMaxThreads = 16;

void make_folder(const std::filesystem::path& folder) {
  check_new_folder(folder);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure || !std::filesystem::is_directory(folder)) {
    throw Error(fmt::format("folder {} cannot be made: {}", folder.string(), failure.message()));
  }
}

// One tensor, a few pieces side by side, written in order.
class TensorWriter {
 public:
  TensorWriter(const TensorSource& source, CheckpointWriter& writer)
      : source_(source), writer_(writer), buffers_(std::clamp(cores(), 1u, kMaxThreads)) {}

  void write(const TensorShape& tensor, int64_t element_bytes) {
    const bool is_vector = tensor.shape.size() == 1;
    const int64_t n_rows = is_vector ? 1 : tensor.shape[0];
    const int64_t n_columns = tensor.shape.back();
    const int64_t rows_at_once = std::max<int64_t>(1, kPieceBytes / (n_columns * element_bytes));
    for (int64_t row = 0; row < n_rows;) {
      size_t num_pieces = 0;
      {
        std::vector<std::jthread> helpers;
        for (; num_pieces < buffers_.size() && row < n_rows; ++num_pieces) {
          const Range rows = {row, std::min(n_rows, row + rows_at_once)};
          std::vector<std::byte>& buffer = buffers_[num_pieces];
          buffer.resize(static_cast<size_t>(rows.size() * n_columns * element_bytes));
          helpers.emplace_back([&tensor, &buffer, rows, n_columns, this] {
            source_.read({tensor.name, n_columns, rows, {0, n_columns}}, buffer.data());
          });
          row = rows.end;
        }
      }
      for (size_t i = 0; i < num_pieces; ++i) writer_.append(tensor.name, buffers_[i]);
    }
  }

 private:
  static unsigned cores() { return std::thread::hardware_concurrency(); }

  const TensorSource& source_;
  CheckpointWriter& writer_;
  std::vector<std::vector<std::byte>> buffers_;
};

void write_weights(const std::filesystem::path& folder,
                   const ModelConfig& config,
                   const SyntheticRecipe& recipe,
                   const std::function<void(uint64_t, uint64_t)>& progress) {
  const std::vector<TensorShape> tensors = checkpoint_tensors(config);
  std::vector<PlannedTensor> plan;
  for (const TensorShape& tensor : tensors) {
    plan.push_back({tensor.name, safetensors_type_name(recipe.dtype), tensor.shape});
  }
  const std::unique_ptr<TensorSource> source = make_synthetic_source(config, recipe);
  CheckpointWriter writer(folder, plan);
  TensorWriter tensor_writer(*source, writer);
  uint64_t num_done = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensor_writer.write(tensors[i], static_cast<int64_t>(ops::dtype_bytes(recipe.dtype)));
    num_done += plan[i].num_bytes();
    if (progress) progress(num_done, writer.total_bytes());
  }
  writer.finish();
}

const char* dtype_name(ops::DType dtype) {
  if (dtype == ops::DType::kF32) return "float32";
  return dtype == ops::DType::kF16 ? "float16" : "bfloat16";
}

// 1e-05, not the double next to the float of 1e-05.
double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

Json rope_scaling_of(const RopeConfig& rope) {
  if (rope.scaling == RopeScaling::kNone) return nullptr;
  if (rope.scaling != RopeScaling::kLlama3) {
    throw Error("only plain and llama3 rope can be written to a config.json");
  }
  return Json{{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_max_positions}};
}

// qwen3_moe's keys.
void add_experts(const ModelConfig& config, Json& json) {
  const ExpertsConfig& experts = config.experts;
  json["num_experts"] = experts.count;
  json["num_experts_per_tok"] = experts.per_row;
  json["moe_intermediate_size"] = experts.ffn_dim;
  json["norm_topk_prob"] = experts.normalised;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (int32_t l = 0; l < config.n_layers; ++l) {
    if (!config.has_experts(l)) json["mlp_only_layers"].push_back(l);
  }
}

void add_family(const ModelConfig& config, Json& json) {
  if (config.model_type == "llama") {
    json["architectures"] = {"LlamaForCausalLM"};
    json["attention_bias"] = config.attention_bias;
    json["mlp_bias"] = config.mlp_bias;
    json["pretraining_tp"] = 1;
  } else if (config.model_type == "qwen3" || config.model_type == "qwen3_moe") {
    const bool has_experts = config.experts.count > 0;
    json["architectures"] = {has_experts ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM"};
    json["attention_bias"] = config.attention_bias;
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
    json["max_window_layers"] = config.n_layers;
    if (has_experts) add_experts(config, json);
  } else {
    throw Error(fmt::format("model_type \"{}\" cannot be written", config.model_type));
  }
  if (config.sliding_window != 0) throw Error("a sliding window cannot be written");
}

Json special_tokens() {
  return Json{{"bos_token_id", kSyntheticBosId}, {"eos_token_id", kSyntheticEosId}};
}

// In the form that Hugging Face, vLLM and llama.cpp's converter read; of a llama or qwen3 config
// whose rope is plain or llama3's.
std::string config_json_of(const ModelConfig& config) {
  Json json;
  json["architectures"] = nullptr;  // first in the file; its value comes with the family
  json["model_type"] = config.model_type;
  add_family(config, json);
  json["hidden_size"] = config.hidden_dim;
  json["intermediate_size"] = config.ffn_dim;
  json["num_hidden_layers"] = config.n_layers;
  json["num_attention_heads"] = config.n_heads;
  json["num_key_value_heads"] = config.n_kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = config.max_positions;
  json["rms_norm_eps"] = shortest(config.norm_eps);
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = rope_scaling_of(config.rope);
  json["hidden_act"] = "silu";
  json["tie_word_embeddings"] = config.tied_head;
  json["attention_dropout"] = 0.0;
  json["initializer_range"] = 0.02;
  json["use_cache"] = true;
  json["torch_dtype"] = dtype_name(config.dtype);
  json.update(special_tokens());
  return json.dump(2) + "\n";
}

}  // namespace

void check_new_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) return;
  if (!std::filesystem::is_directory(folder) || !std::filesystem::is_empty(folder)) {
    throw Error(fmt::format("{} is there already and is no empty folder", folder.string()));
  }
}

void write_synthetic_folder(const std::filesystem::path& folder,
                            ModelConfig config,
                            const SyntheticRecipe& recipe,
                            const std::function<void(uint64_t, uint64_t)>& progress) {
  config.dtype = recipe.dtype;
  make_folder(folder);
  write_weights(folder, config, recipe, progress);
  const SyntheticTokenizer tokenizer =
      make_synthetic_tokenizer(config.vocab_size, config.max_positions);
  write_new_file(folder / "tokenizer.json", tokenizer.tokenizer_json);
  write_new_file(folder / "tokenizer_config.json", tokenizer.tokenizer_config_json);
  write_new_file(folder / "tokenizer.model", tokenizer.tokenizer_model);
  write_new_file(folder / "generation_config.json", special_tokens().dump(2) + "\n");
  write_new_file(folder / "config.json", config_json_of(config));
}

}  // namespace outrider
