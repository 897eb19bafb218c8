// Reads config.json and generation_config.json into a ModelConfig; see model_config.h. Everything
// is range-checked here, so later code may multiply these sizes without fear.
#include "models/checkpoint/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/checkpoint/checked_json.h"
#include "models/checkpoint/folder_mistakes.h"
#include "models/checkpoint/model_documents.h"
#include "models/gguf/gguf_file.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxDim = 65'536;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxFfn = 1 << 20;
constexpr int64_t kMaxVocab = 2'000'000;
constexpr int64_t kMaxPositions = 1 << 28;
constexpr size_t kMaxEndTokens = 64;

struct IntRange {
  int64_t low;
  int64_t high;
};

// Typed access to one JSON object; null counts as absent, as Hugging Face treats it.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: {}", where_, what));
  }
  bool has(const char* key) const { return object_.contains(key); }
  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::optional<int64_t> optional_int(const char* key, IntRange range) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    // An unsigned value beyond int64 is out of every range asked for here.
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
    if (!fits || value->get<int64_t>() < range.low || value->get<int64_t>() > range.high) {
      fail(fmt::format("\"{}\" must be a whole number from {} to {}", key, range.low, range.high));
    }
    return value->get<int64_t>();
  }
  int32_t integer(const char* key, IntRange range) const {
    const auto value = optional_int(key, range);
    if (!value) fail(fmt::format("\"{}\" is missing", key));
    return static_cast<int32_t>(*value);
  }
  int32_t integer_or(const char* key, IntRange range, int64_t otherwise) const {
    return static_cast<int32_t>(optional_int(key, range).value_or(otherwise));
  }
  std::optional<double> optional_number(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !std::isfinite(value->get<double>())) {
      fail(fmt::format("\"{}\" must be a number", key));
    }
    return value->get<double>();
  }
  // A number in [low, high].
  double number_or(const char* key, double low, double high, double otherwise) const {
    const double value = optional_number(key).value_or(otherwise);
    if (!(value >= low && value <= high)) {
      fail(fmt::format("\"{}\" must be from {} to {}", key, low, high));
    }
    return value;
  }
  bool flag_or(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(fmt::format("\"{}\" must be true or false", key));
    return value->get<bool>();
  }
  std::string text_or(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) fail(fmt::format("\"{}\" must be a text", key));
    return printable(value->get_ref<const std::string&>());
  }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

// Keys of other families that change the numbers. A file that has one wants them honoured, whatever
// its model_type says.
void refuse_other_numbers(const Fields& fields) {
  for (const char* key : {"use_mrope",
                          "rope_interleaved",
                          "use_bidirectional_attention",
                          "qk_layernorm",
                          "attn_temperature_tuning"}) {
    if (fields.flag_or(key, false)) fields.fail(fmt::format("{} is not supported", key));
  }
  if (!fields.flag_or("is_causal", true)) fields.fail("is_causal false is not supported");
  for (const char* key : {"logits_scaling",
                          "logit_scale",
                          "embedding_multiplier",
                          "residual_multiplier",
                          "scale_emb",
                          "lm_head_multiplier"}) {
    if (fields.optional_number(key).value_or(1.0) != 1.0)
      fields.fail(fmt::format("{} other than 1 is not supported", key));
  }
  for (const char* key : {"attention_multiplier",
                          "query_pre_attn_scalar",
                          "attn_logit_softcapping",
                          "final_logit_softcapping",
                          "attention_chunk_size",
                          "clip_qkv",
                          "scale_depth",
                          "no_rope_layers",
                          "no_rope_layer_interval"}) {
    if (fields.find(key) != nullptr) fields.fail(fmt::format("{} is not supported", key));
  }
}

void refuse_unsupported(const Fields& fields) {
  const std::string act = fields.text_or("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    fields.fail(fmt::format("hidden_act \"{}\" is not supported; only silu is", act));
  }
  for (const char* key : {"compression_config", "auto_map"}) {
    if (fields.find(key) != nullptr) fields.fail(fmt::format("{} is not supported", key));
  }
  refuse_other_numbers(fields);
  if (fields.number_or("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    fields.fail("partial_rotary_factor other than 1 is not supported");
  }
  const Json* classes = fields.find("architectures");
  if (classes == nullptr || (classes->is_array() && classes->empty())) return;
  const bool causal = classes->is_array() && (*classes)[0].is_string() &&
                      (*classes)[0].get_ref<const std::string&>().ends_with("ForCausalLM");
  if (!causal) fields.fail("architectures names no ...ForCausalLM model");
}

void read_sizes(const Fields& fields, ModelConfig& config) {
  config.n_layers = fields.integer("num_hidden_layers", {1, kMaxLayers});
  config.hidden_dim = fields.integer("hidden_size", {1, kMaxDim});
  config.n_heads = fields.integer("num_attention_heads", {1, kMaxHeads});
  config.n_kv_heads = fields.integer_or("num_key_value_heads", {1, kMaxHeads}, config.n_heads);
  config.ffn_dim = fields.integer("intermediate_size", {1, kMaxFfn});
  config.vocab_size = fields.integer("vocab_size", {1, kMaxVocab});
  config.max_positions = fields.integer("max_position_embeddings", {1, kMaxPositions});
  if (config.n_heads % config.n_kv_heads != 0) {
    fields.fail(fmt::format("num_key_value_heads {} does not divide num_attention_heads {}",
                            config.n_kv_heads,
                            config.n_heads));
  }
  const auto head_dim = fields.optional_int("head_dim", {2, kMaxHeadDim});
  if (!head_dim && config.model_type == "qwen3") {
    config.head_dim = 128;  // the family's default, not hidden / heads
  } else if (!head_dim && config.hidden_dim % config.n_heads != 0) {
    fields.fail(fmt::format(
        "num_attention_heads {} does not divide hidden_size {} and there is no head_dim",
        config.n_heads,
        config.hidden_dim));
  } else {
    config.head_dim = static_cast<int32_t>(head_dim.value_or(config.hidden_dim / config.n_heads));
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    fields.fail(
        fmt::format("a head dimension of {} is not supported; it must be even and at most {}",
                    config.head_dim,
                    kMaxHeadDim));
  }
  config.norm_eps = static_cast<float>(fields.number_or("rms_norm_eps", 1e-12, 0.1, 1e-6));
}

// Of every layer, whether it is windowed, where the file lists them.
std::optional<std::vector<bool>> windowed_layers(const Fields& fields, const ModelConfig& config) {
  const Json* types = fields.find("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || types->size() != static_cast<size_t>(config.n_layers)) {
    fields.fail("\"layer_types\" must list every layer");
  }
  std::vector<bool> windowed;
  for (const Json& type : *types) {
    windowed.push_back(type == "sliding_attention");
    if (!windowed.back() && type != "full_attention") {
      fields.fail(
          "\"layer_types\" holds something other than full_attention and sliding_attention");
    }
  }
  return windowed;
}

// Qwen gives the windowed layers by number or by a list of names; only "the first n full, the rest
// windowed" is known here.
int32_t first_windowed(const Fields& fields, const ModelConfig& config) {
  const auto windowed = windowed_layers(fields, config);
  if (!windowed) return fields.integer_or("max_window_layers", {0, 1'000'000}, 28);
  int32_t first = config.n_layers;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const bool is_windowed = (*windowed)[static_cast<size_t>(layer)];
    if (is_windowed && first == config.n_layers) first = layer;
    if (!is_windowed && first < layer) {
      fields.fail(
          "\"layer_types\" mixes full and windowed layers in an order that is not supported");
    }
  }
  return first;
}

void read_window(const Fields& fields, ModelConfig& config) {
  const bool is_qwen = config.model_type == "qwen2" || config.model_type == "qwen3";
  const IntRange range{1, kMaxPositions};
  if (is_qwen && fields.flag_or("use_sliding_window", false)) {
    config.sliding_window = fields.integer_or("sliding_window", range, 4096);
    config.first_windowed_layer = std::min(first_windowed(fields, config), config.n_layers);
    if (config.first_windowed_layer == config.n_layers) config.sliding_window = 0;
  }
  if (is_qwen) return;
  const auto windowed = windowed_layers(fields, config);
  const bool has_full =
      windowed && std::find(windowed->begin(), windowed->end(), false) != windowed->end();
  const bool has_windowed =
      windowed && std::find(windowed->begin(), windowed->end(), true) != windowed->end();
  if (config.model_type == "mistral") {
    // Hugging Face's default where the key is absent; an explicit null means none.
    config.sliding_window =
        fields.integer_or("sliding_window", range, fields.has("sliding_window") ? 0 : 4096);
    if (config.sliding_window > 0 ? has_full : has_windowed)
      fields.fail("\"layer_types\" and \"sliding_window\" say different things");
    return;
  }
  // Other programs read llama's window in different ways, so only contexts within it are the same.
  const bool is_off = !fields.flag_or("use_sliding_window", true) || (windowed && !has_windowed);
  const int32_t window = fields.integer_or("sliding_window", range, 0);
  if (!is_off) config.undecided_window = window;
}

void read_family(const Fields& fields, ModelConfig& config) {
  if (config.model_type == "llama" || config.model_type == "qwen3") {
    config.attention_bias = fields.flag_or("attention_bias", false);
    config.attention_out_bias = config.attention_bias;
  }
  if (config.model_type == "llama") config.mlp_bias = fields.flag_or("mlp_bias", false);
  if (config.model_type == "qwen2") config.attention_bias = true;
  config.qk_norm = config.model_type == "qwen3";
  config.tied_head = fields.flag_or("tie_word_embeddings", false);
  read_window(fields, config);
}

RopeScaling scaling_from_name(const Fields& fields, const std::string& name) {
  if (name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "dynamic") return RopeScaling::kDynamic;
  if (name == "llama3") return RopeScaling::kLlama3;
  if (name == "yarn") return RopeScaling::kYarn;
  fields.fail(fmt::format(
      "rope type \"{}\" is not supported; known are default, linear, dynamic, llama3 and yarn",
      name));
}

// The factor on cos and sin of Peng et al. 2023 (YaRN), section 3.4, in Hugging Face's reading.
double yarn_attention_factor(const Fields& fields, double factor) {
  const auto given = fields.optional_number("attention_factor");
  if (given) return fields.number_or("attention_factor", 1e-3, 1e3, 1.0);
  const auto mscale_of = [factor](double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  const double mscale = fields.number_or("mscale", 0.0, 1e3, 0.0);
  const double mscale_all_dim = fields.number_or("mscale_all_dim", 0.0, 1e3, 0.0);
  if (mscale > 0.0 && mscale_all_dim > 0.0) return mscale_of(mscale) / mscale_of(mscale_all_dim);
  return mscale_of(1.0);
}

void read_scaling(const Fields& fields, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  const std::string old_name = fields.text_or("type", "default");
  rope.scaling = scaling_from_name(fields, fields.text_or("rope_type", old_name.c_str()));
  rope.original_max_positions = fields.integer_or(
      "original_max_position_embeddings", {1, kMaxPositions}, rope.original_max_positions);
  if (rope.scaling == RopeScaling::kNone) return;
  const bool computed_factor =
      rope.scaling == RopeScaling::kYarn && fields.find("factor") == nullptr;
  if (!computed_factor && fields.find("factor") == nullptr) fields.fail("\"factor\" is missing");
  rope.factor = computed_factor
                    ? static_cast<double>(config.max_positions) / rope.original_max_positions
                    : fields.number_or("factor", 1e-3, 1e6, 1.0);
  if (rope.scaling == RopeScaling::kLlama3) {
    rope.low_freq_factor = fields.number_or("low_freq_factor", 1e-3, 1e6, 1.0);
    rope.high_freq_factor = fields.number_or("high_freq_factor", 1e-3, 1e6, 4.0);
    if (!(rope.high_freq_factor > rope.low_freq_factor)) {
      fields.fail("\"high_freq_factor\" must be larger than \"low_freq_factor\"");
    }
  }
  if (rope.scaling == RopeScaling::kYarn) {
    rope.beta_fast = fields.number_or("beta_fast", 1e-3, 1e6, 32.0);
    rope.beta_slow = fields.number_or("beta_slow", 1e-3, 1e6, 1.0);
    rope.yarn_truncate = fields.flag_or("truncate", true);
    rope.attention_factor = yarn_attention_factor(fields, rope.factor);
  }
}

// Both forms: rope_theta beside rope_scaling (before transformers 5), and rope_parameters holding
// all of it.
void read_rope(const Fields& fields, ModelConfig& config) {
  config.rope.rotary_dim = config.head_dim;
  // Some files give the length beside the scaling, not inside it.
  config.rope.original_max_positions = fields.integer_or(
      "original_max_position_embeddings", {1, kMaxPositions}, config.max_positions);
  double theta = fields.number_or("rope_theta", 1.0, 1e12, 10'000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* object = fields.find(key);
    if (object == nullptr) continue;
    const Fields inner(*object, fmt::format("{}: {}", fields.where(), key));
    if (!object->is_object()) inner.fail("must be an object");
    if (inner.find("mrope_section") != nullptr) inner.fail("mrope_section is not supported");
    if (inner.find("full_attention") != nullptr || inner.find("sliding_attention") != nullptr) {
      inner.fail("one rope per kind of layer is not supported");
    }
    if (inner.number_or("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
      inner.fail("partial_rotary_factor other than 1 is not supported");
    }
    theta = inner.number_or("rope_theta", 1.0, 1e12, theta);
    read_scaling(inner, config);
  }
  if (!(theta > 1.0)) fields.fail("\"rope_theta\" must be larger than 1");
  config.rope.theta = theta;
}

ops::DType read_dtype(const Fields& fields) {
  const std::string old_name = fields.text_or("torch_dtype", "float32");
  const std::string name = fields.text_or("dtype", old_name.c_str());
  if (name == "bfloat16") return ops::DType::kBF16;
  if (name == "float16") return ops::DType::kF16;
  if (name == "float32") return ops::DType::kF32;
  fields.fail(
      fmt::format("dtype \"{}\" is not supported; known are bfloat16, float16 and float32", name));
}

std::optional<std::vector<int32_t>> read_end_tokens(const Fields& fields) {
  const Json* value = fields.find("eos_token_id");
  if (value == nullptr) return std::nullopt;
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kMaxEndTokens) fields.fail("\"eos_token_id\" lists too many tokens");
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocab)) {
      fields.fail("\"eos_token_id\" must hold token ids");
    }
    ids.push_back(id.get<int32_t>());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Checked JSON.
std::optional<std::string> read_document(const std::filesystem::path& model, const char* name) {
  const JsonLimits limits;
  auto text = read_model_document(model, name, limits.max_bytes);
  if (text) check_json(*text, limits, (model / name).string());
  return text;
}

}  // namespace

ModelConfig load_model_config(const std::filesystem::path& model_dir) {
  const auto document = read_document(model_dir, "config.json");
  if (!document) refuse_without_config(model_dir);
  const Json json = Json::parse(*document);
  const std::string origin = is_gguf(model_dir) ? model_dir : model_dir / "config.json";
  const Fields fields(json, origin);
  ModelConfig config;
  config.model_type = fields.text_or("model_type", "");
  if (config.model_type != "llama" && config.model_type != "mistral" &&
      config.model_type != "qwen2" && config.model_type != "qwen3") {
    fields.fail(
        fmt::format("model_type \"{}\" is not known; known are llama, mistral, qwen2 and qwen3",
                    config.model_type));
  }
  refuse_unsupported(fields);
  read_sizes(fields, config);
  read_family(fields, config);
  read_rope(fields, config);
  config.dtype = read_dtype(fields);
  config.quantization = read_quantization_config(*document, origin);
  config.bos_token_id = fields.integer_or("bos_token_id", {-1, kMaxVocab}, -1);
  auto end_tokens = read_end_tokens(fields);
  if (const auto generation = read_document(model_dir, "generation_config.json")) {
    const Json generation_json = Json::parse(*generation);
    const auto own = read_end_tokens(
        Fields(generation_json, (model_dir / "generation_config.json").string()));
    if (own) end_tokens = own;
  }
  config.eos_token_ids = end_tokens.value_or(std::vector<int32_t>{});
  return config;
}

GenerationDefaults load_generation_defaults(const std::filesystem::path& model_dir) {
  GenerationDefaults defaults;
  const auto document = read_document(model_dir, "generation_config.json");
  if (!document) return defaults;
  const Json json = Json::parse(*document);
  const Fields fields(json, (model_dir / "generation_config.json").string());
  const auto number = [&fields](const char* key, double low, double high, float otherwise) {
    return static_cast<float>(fields.number_or(key, low, high, otherwise));
  };
  defaults.temperature = number("temperature", 0.0, 100.0, defaults.temperature);
  defaults.top_p = number("top_p", 0.0, 1.0, defaults.top_p);
  defaults.top_k = fields.integer_or("top_k", {0, kMaxVocab}, defaults.top_k);
  defaults.min_p = number("min_p", 0.0, 1.0, defaults.min_p);
  defaults.repetition_penalty =
      number("repetition_penalty", 0.01, 100.0, defaults.repetition_penalty);
  return defaults;
}

}  // namespace outrider
