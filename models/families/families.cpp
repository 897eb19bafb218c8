// The table of families, and what is read alike for all of them; see families.h.
#include "models/families/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "models/checkpoint/folder_mistakes.h"
#include "models/families/readers.h"
#include "models/families/table.h"
#include "models/gguf/gguf_file.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr size_t kMaxEndTokens = 64;

// Keys that change no number of a forward pass. Those that begin with '_' or "unsloth" are notes of
// the program that wrote the file.
constexpr const char* kHarmless[] = {"architectures",
                                     "model_type",
                                     "transformers_version",
                                     "transformers.js_config",
                                     "use_cache",
                                     "initializer_range",
                                     "init_std",
                                     "attention_dropout",
                                     "hidden_dropout",
                                     "dropout",
                                     "activation_dropout",
                                     "residual_dropout",
                                     "embedding_dropout",
                                     "layerdrop",
                                     "resid_pdrop",
                                     "embd_pdrop",
                                     "attn_pdrop",
                                     "classifier_dropout",
                                     "hidden_dropout_prob",
                                     "pad_token_id",
                                     "sep_token_id",
                                     "unk_token_id",
                                     "cls_token_id",
                                     "decoder_start_token_id",
                                     "pretraining_tp",
                                     "quantization_config",
                                     "id2label",
                                     "label2id",
                                     "num_labels",
                                     "return_dict",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "torchscript",
                                     "chunk_size_feed_forward",
                                     "max_length",
                                     "min_length",
                                     "do_sample",
                                     "early_stopping",
                                     "num_beams",
                                     "num_beam_groups",
                                     "diversity_penalty",
                                     "temperature",
                                     "top_k",
                                     "top_p",
                                     "typical_p",
                                     "repetition_penalty",
                                     "length_penalty",
                                     "no_repeat_ngram_size",
                                     "encoder_no_repeat_ngram_size",
                                     "num_return_sequences",
                                     "task_specific_params",
                                     "problem_type",
                                     "attn_implementation",
                                     "finetuning_task",
                                     "tokenizer_class",
                                     "prefix",
                                     "summary_type",
                                     "summary_use_proj",
                                     "summary_proj_to_labels",
                                     "summary_first_dropout",
                                     "summary_activation",
                                     "n_ctx",
                                     "gradient_checkpointing",
                                     "cache_implementation",
                                     "is_decoder",
                                     "is_llama_config",
                                     "max_new_tokens",
                                     "reorder_and_upcast_attn",
                                     "use_flash_attention",
                                     "use_flash_attn",
                                     "model_max_length",
                                     "max_sequence_length",
                                     "bos_token_id",
                                     "eos_token_id",
                                     "image_token_id",
                                     "boi_token_id",
                                     "eoi_token_id",
                                     "mup_scale",
                                     "torch_dtype",
                                     "dtype"};

// Keys with a value that changes nothing.
constexpr const char* kOnesWhenHarmless[] = {"logits_scaling",
                                             "logit_scale",
                                             "embedding_multiplier",
                                             "residual_multiplier",
                                             "scale_emb",
                                             "lm_head_multiplier",
                                             "partial_rotary_factor"};

void refuse_unknown(const ConfigFields& fields, const ModelConfig& config) {
  fields.know({std::begin(kHarmless), std::end(kHarmless)});
  if (!fields.flag_or("is_causal", true)) fields.fail("is_causal false is not supported");
  for (const std::string& key : fields.unknown_keys()) {
    if (key.starts_with('_') || key.starts_with("unsloth")) continue;
    const bool may_be_one = std::find(std::begin(kOnesWhenHarmless),
                                      std::end(kOnesWhenHarmless),
                                      std::string_view(key)) != std::end(kOnesWhenHarmless);
    if (may_be_one && fields.optional_number(key.c_str()) == 1.0) continue;
    if (may_be_one) fields.fail(fmt::format("{} other than 1 is not supported", key));
    fields.fail(fmt::format(
        "{} is not supported for model_type {}; take it out of the file if it changes no number",
        key.substr(0, 100),
        config.model_type));
  }
}

void check_architecture(const ConfigFields& fields) {
  const auto classes = fields.texts("architectures");
  if (!classes || classes->empty()) return;
  for (const char* ending : {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"}) {
    if (classes->front().ends_with(ending)) return;
  }
  fields.fail("architectures names no ...ForCausalLM model");
}

ops::DType read_dtype(const ConfigFields& fields, const ConfigFields& outer) {
  const std::string outer_name =
      outer.text_or("dtype", outer.text_or("torch_dtype", "float32").c_str());
  const std::string name =
      fields.text_or("dtype", fields.text_or("torch_dtype", outer_name.c_str()).c_str());
  if (name == "bfloat16") return ops::DType::kBF16;
  if (name == "float16") return ops::DType::kF16;
  if (name == "float32") return ops::DType::kF32;
  fields.fail(
      fmt::format("dtype \"{}\" is not supported; known are bfloat16, float16 and float32", name));
}

std::optional<std::vector<int32_t>> read_end_tokens(const ConfigFields& fields) {
  if (!fields.is_set("eos_token_id")) return std::nullopt;
  std::optional<std::vector<double>> values;
  try {
    values = fields.numbers("eos_token_id");
  } catch (const Error&) {
    fields.fail("\"eos_token_id\" must hold token ids");
  }
  if (values->size() > kMaxEndTokens) fields.fail("\"eos_token_id\" lists too many tokens");
  std::vector<int32_t> ids;
  for (const double id : *values) {
    if (!(id >= 0.0 && id < static_cast<double>(kMaxVocab)) || id != std::floor(id)) {
      fields.fail("\"eos_token_id\" must hold token ids");
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::string known_types() {
  std::string names;
  for (const Family* family : families()) {
    const bool is_last = family == families().back();
    names += (names.empty() ? "" : is_last ? " and " : ", ") + std::string(family->model_type);
  }
  return names;
}

const Family& find_family(const ConfigFields& fields, const std::string& model_type) {
  for (const Family* family : families()) {
    if (model_type == family->model_type) return *family;
  }
  fields.fail(
      fmt::format("model_type \"{}\" is not known; known are {}", model_type, known_types()));
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

ModelConfig load_model_config(const std::filesystem::path& model_dir) {
  const auto document = ConfigFields::read(model_dir, "config.json");
  if (!document) refuse_without_config(model_dir);
  const ConfigFields& outer = *document;
  // Models that also see keep their text part in an object of its own; the rest is not loaded.
  const auto text = outer.object("text_config");
  const ConfigFields& fields = text ? *text : outer;
  ModelConfig config;
  config.model_type = fields.text_or("model_type", "");
  const Family& family = find_family(fields, config.model_type);
  check_architecture(outer);
  config.dtype = read_dtype(fields, outer);
  family.read(fields, config);
  if (is_gguf(model_dir)) config.norm_plus_one = false;  // its norms have the 1 added
  refuse_unknown(fields, config);
  if (text) config.tied_head = outer.flag_or("tie_word_embeddings", config.tied_head);
  config.quantization = read_quantization_config(model_dir);
  config.bos_token_id = fields.integer_or("bos_token_id", {-1, kMaxVocab}, -1);
  auto end_tokens = read_end_tokens(fields);
  if (!end_tokens && text) end_tokens = read_end_tokens(outer);
  if (const auto generation = ConfigFields::read(model_dir, "generation_config.json")) {
    const auto own = read_end_tokens(*generation);
    if (own) end_tokens = own;
  }
  config.eos_token_ids = end_tokens.value_or(std::vector<int32_t>{});
  return config;
}

}  // namespace outrider
