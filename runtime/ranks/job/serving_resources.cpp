// See serving_resources.h.
#include "runtime/ranks/job/serving_resources.h"

#include <fmt/format.h>

#include <filesystem>

#include "models/simulated/spec.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/ranks/loading/draft_corpus.h"
#include "runtime/ranks/loading/engine_sizes.h"
#include "runtime/ranks/loading/grammar_loader.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

constexpr size_t kMaxTemplateFileBytes = size_t{1} << 20;

DraftMethod own_method(const std::string& name) {
  for (const OwnDraftMethod& own : kOwnDraftMethods) {
    if (name == own.name) return own.method;
  }
  return DraftMethod::kNone;
}

std::string served_name(const RunConfig& config) {
  if (!config.served_model_name.empty()) return config.served_model_name;
  if (config.model == "embedded") return "outrider-embedded";
  if (is_simulated(config.model)) return "outrider-simulated";
  const std::string file = std::filesystem::path(config.model).filename().string();
  return file.empty() ? config.model : file;
}

// A synthetic or simulated model has no tokenizer; the embedded one's ids lie within its
// vocabulary, which is enough to bench.
std::filesystem::path text_folder(const RunConfig& config) {
  return model_folder(has_no_files(config.model) ? "embedded" : config.model, Role::kTarget);
}

void check_prompt_lookup(const SpeculativeConfig& config) {
  if (config.prompt_lookup_max >= config.prompt_lookup_min) return;
  throw Error(fmt::format(
      "speculative_config.prompt_lookup_max is {}, less than prompt_lookup_min, which is {}",
      config.prompt_lookup_max,
      config.prompt_lookup_min));
}

ChatTemplate template_in(const std::string& file, const std::filesystem::path& folder) {
  const std::string source = read_text_file(file, kMaxTemplateFileBytes);
  try {
    return ChatTemplate::parse(source, folder);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", file, error.what()));
  }
}

std::shared_ptr<const TcpListener> listen_for_drafts(const RunConfig& config) {
  const std::string& where = config.speculative.draft_listen;
  if (where.empty()) return nullptr;
  constexpr const char* kNoKey =
      "draft_listen without draft_key is for loopback addresses alone: whoever attaches reads all "
      "texts";
  return std::make_shared<const TcpListener>(parse_tcp_address(where, "draft_listen"),
                                             config.draft_key.empty() ? kNoKey : "");
}

}  // namespace

ServingResources load_serving_resources(const RunConfig& config) {
  check_prompt_lookup(config.speculative);
  const auto folder = text_folder(config);
  ServingResources resources;
  resources.draft_listener = listen_for_drafts(config);
  resources.checks = Checks::from_environment();
  resources.tokenizer = Tokenizer::load(folder);
  resources.grammars = make_grammar_engine(config, *resources.tokenizer);
  resources.chat_template = config.chat_template.empty()
                                ? ChatTemplate::load(folder)
                                : template_in(config.chat_template, folder);
  resources.answer_formats = choose_answer_formats(
      resources.chat_template ? resources.chat_template->source() : std::string(),
      config.tool_call_parser,
      config.reasoning_parser);
  resources.defaults = generation_defaults(config);
  resources.draft_corpus =
      learn_draft_corpus(config.speculative,
                         *resources.tokenizer,
                         model_config_of(config.model, Role::kTarget).vocab_size);
  return resources;
}

PlannerConfig planner_config(const RunConfig& config,
                             const RankLayout& layout,
                             const ModelConfig& model,
                             int32_t num_kv_blocks,
                             const ServingResources& resources) {
  const EngineSizes sizes = engine_sizes(config, model, layout);
  PlannerConfig planner;
  planner.block_size = config.block_size;
  planner.num_blocks = num_kv_blocks;
  planner.max_num_seqs = config.max_num_seqs;
  planner.max_num_batched_tokens = sizes.max_rows;
  planner.max_model_len = sizes.max_model_len;
  planner.enable_prefix_caching = config.enable_prefix_caching;
  planner.scheduling_policy =
      config.scheduling_policy == "fcfs" ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
  planner.priority_aging_rounds = config.priority_aging_rounds;
  planner.capacity_policy = config.capacity_scheduler_policy == "guaranteed_no_evict"
                                ? CapacityPolicy::kGuaranteedNoEvict
                                : CapacityPolicy::kMaxUtilization;
  planner.vocab_size = model.vocab_size;
  const bool has_draft_model = layout.has_draft || !config.speculative.draft_listen.empty();
  planner.draft_method =
      has_draft_model ? DraftMethod::kDraftModel : own_method(config.speculative.method);
  if (has_draft_model) planner.backup_method = own_method(config.speculative.backup);
  planner.num_speculative_tokens = config.speculative.longest_draft_len();
  planner.prompt_lookup_max = config.speculative.prompt_lookup_max;
  planner.prompt_lookup_min = config.speculative.prompt_lookup_min;
  planner.num_draft_candidates = config.speculative.num_draft_candidates;
  planner.draft_corpus = resources.draft_corpus;
  planner.grammars = resources.grammars;
  planner.reports_freed_blocks = resources.checks.poison;
  return planner;
}

EngineInfo engine_info(const RunConfig& config,
                       const RankLayout& layout,
                       const PlannerConfig& planner) {
  EngineInfo info;
  info.model_root = config.model;
  info.served_model_name = served_name(config);
  info.max_model_len = planner.max_model_len;
  info.vocab_size = planner.vocab_size;
  info.num_target_ranks = layout.num_targets;
  if (planner.draft_method == DraftMethod::kDraftModel) {
    info.draft = layout.has_draft ? config.speculative.model : "over TCP";
  } else if (planner.draft_method != DraftMethod::kNone) {
    info.draft = config.speculative.method;
  }
  info.num_speculative_tokens = info.draft.empty() ? 0 : planner.num_speculative_tokens;
  return info;
}

EngineInfo engine_info(const RunConfig& config) {
  const RankLayout layout = make_layout(config, 0);
  const ModelConfig model = model_config_of(config.model, Role::kTarget);
  return engine_info(config, layout, planner_config(config, layout, model, 0, {}));
}

GenerationDefaults generation_defaults(const RunConfig& config) {
  if (config.generation_config != "auto") return {};
  return load_generation_defaults(text_folder(config));
}

}  // namespace outrider
