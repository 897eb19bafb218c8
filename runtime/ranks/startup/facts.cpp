// See facts.h.
#include "runtime/ranks/startup/facts.h"

#include <fmt/format.h>

#include <filesystem>

#include "models/checkpoint/fingerprint.h"
#include "models/checkpoint/model_documents.h"
#include "models/simulated/spec.h"
#include "runtime/ranks/loading/cpu_dtypes.h"
#include "runtime/ranks/loading/model_names.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {
namespace {

// prefix: "model" or "draft".
void add_model(const std::string& prefix,
               const std::string& name,
               Role role,
               bool with_weights,
               std::vector<Fact>* facts) {
  if (has_no_files(name)) {
    facts->push_back({prefix, name});
    return;
  }
  const std::filesystem::path folder = model_folder(name, role);
  const auto add = [&](const char* part, const std::string& fingerprint) {
    facts->push_back({fmt::format("{} {}", prefix, part), fingerprint});
  };
  constexpr size_t kMaxBytes = size_t{1} << 30;
  for (const char* document : {"config.json", "tokenizer.json"}) {
    // What only measures needs no tokenizer.
    const auto text = read_model_document(folder, document, kMaxBytes);
    if (text) add(document, fingerprint_of_text(*text));
  }
  if (with_weights) add("weights", fingerprint_of_weights(folder));
}

// What decides how a target rank cuts the model, sizes its memory and folds its sums.
void add_target_settings(const RunConfig& config, std::vector<Fact>* facts) {
  const auto add = [&](const char* name, const auto& value) {
    facts->push_back({name, fmt::format("{}", value)});
  };
  add("device", config.device);
  add("device_sums", config.device_sums);
  add("numerics", config.numerics);
  add("quantization", config.quantization);
  add("tensor_parallel_size", config.tensor_parallel_size);
  add("max_model_len", config.max_model_len);
  add("max_num_seqs", config.max_num_seqs);
  add("max_num_batched_tokens", config.max_num_batched_tokens);
  add("block_size", config.block_size);
  add("kv_cache_memory_bytes", config.kv_cache_memory_bytes);
  add("num_speculative_tokens", config.speculative.num_speculative_tokens);
  add("trace", config.trace.empty() ? "off" : "on");
  if (config.device != "cpu") return add("kv_cache_dtype", config.kv_cache_dtype);
  // What `auto` comes to may differ between hosts. The first fact that differs is the one named,
  // and the type of keys and values follows that of activations.
  const ModelConfig model = model_config_of(config.model, Role::kTarget);
  if (!is_simulated(config.model)) {  // which multiplies nothing
    const bool rounds = activations_of(config, model) == ops::Activations::kBF16;
    add("activation_dtype", rounds ? "bfloat16" : "float32");
  }
  add("kv_cache_dtype", ops::kv_type_name(kv_type_of(config, model)));
}

bool sees_draft(const RunConfig& config) {
  std::error_code ignored;
  const std::string& name = config.speculative.model;
  return has_no_files(name) || name == "embedded" || std::filesystem::is_directory(name, ignored);
}

}  // namespace

void add_startup_facts(const RunConfig& config,
                       const RankLayout& layout,
                       int rank,
                       std::vector<Fact>* facts) {
  const bool is_target = layout.role(rank) != Role::kDraft;
  facts->push_back({"ranks", layout.text()});
  facts->push_back({"grammar engine", GrammarEngine::is_built() ? "xgrammar" : "none"});
  facts->push_back({"speculative_config.method", config.speculative.method});
  add_model("model", config.model, Role::kTarget, is_target, facts);
  if (is_target) add_target_settings(config, facts);
  const bool adds_draft = !is_target || (rank == 0 && layout.has_draft && sees_draft(config));
  if (adds_draft) add_model("draft", config.speculative.model, Role::kDraft, true, facts);
}

}  // namespace outrider
