// See model_loader.h.
#include "runtime/ranks/loading/model_loader.h"

#include <algorithm>

#include "models/simulated/simulated.h"
#include "models/weights/e4m3_weights.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/telemetry/process_memory.h"
#include "runtime/comm/device/device_sums.h"
#include "runtime/ranks/loading/draft_pair.h"
#include "runtime/ranks/loading/engine_sizes.h"
#include "runtime/ranks/loading/gpu_memory.h"
#include "runtime/ranks/loading/model_names.h"
#include "runtime/ranks/loading/weight_reading.h"

namespace outrider {
namespace {

void log_memory(const Model& model, const ops::ThreadPlan& threads) {
  const Model::Memory& memory = model.memory();
  log_info("{}", ops::describe(threads));
  log_info(
      "memory: {} MiB of weights, up to {} MiB of KV and {} MiB of buffers; the process has "
      "{} MiB, {} MiB of it in huge pages",
      memory.weights >> 20,
      memory.kv >> 20,
      memory.buffers >> 20,
      process_memory().resident_bytes >> 20,
      huge_page_bytes() >> 20);
  if (huge_page_mode() == "never") {
    log_info(
        "huge pages are off on this host (transparent_hugepage: never); what that costs: "
        "docs/config.md, Threads and memory");
  }
}

SimulatedSpec simulated_target(const RunConfig& config) {
  SimulatedSpec spec = parse_simulated(config.model);
  if (!spec.alpha.empty())
    throw Error("simulated model: alpha is the draft's; the target has none");
  return spec;
}

// Another seed, vocabulary, number of workload_classes or repetition would be another language.
void check_simulated_pair(const RunConfig& config) {
  const SimulatedSpec draft = parse_simulated(config.speculative.model);
  const SimulatedSpec target = parse_simulated(config.model);
  const auto check_same = [](const char* key, auto draft_value, auto target_value) {
    if (draft_value == target_value) return;
    throw Error(fmt::format(
        "simulated draft: {} is {} where the target's is {}", key, draft_value, target_value));
  };
  check_same("seed", draft.seed, target.seed);
  check_same("vocab", draft.vocab, target.vocab);
  check_same("workload_classes", draft.workload_classes, target.workload_classes);
  check_same("repeat", draft.repeat, target.repeat);
}

SimulatedSpec simulated_draft(const RunConfig& config) {
  SimulatedSpec spec = parse_simulated(config.speculative.model);
  if (spec.alpha.empty()) spec.alpha = {kDefaultSimulatedAlpha};
  return spec;
}

void log_gpu_memory(const LoadedModel& parts, const GpuTransformer& model) {
  const gpu::DeviceInfo info = parts.assignment.device->info();
  const Model::Memory& memory = model.memory();
  log_info(
      "GPU {} ({}): {} MiB of weights, {} MiB of KV, {} MiB of buffers, {} graphs; {} of {} "
      "MiB are free",
      info.ordinal,
      info.name,
      memory.weights >> 20,
      memory.kv >> 20,
      memory.buffers >> 20,
      model.num_graphs(),
      info.free_bytes >> 20,
      info.total_bytes >> 20);
}

void join(LoadedModel& parts, std::unique_ptr<DeviceGroup> group) {
  auto& model = dynamic_cast<GpuTransformer&>(*parts.model);
  parts.device_group = std::move(group);
  model.join(*parts.device_group);
  model.warm_up();
  log_gpu_memory(parts, model);
}

// Numbers of synthetic models are drawn on the device. Several ranks are still to begin_together().
LoadedModel load_on_gpu(DeviceAssignment assignment,
                        const std::string& name,
                        Role role,
                        const MemoryRequirement& requirement,
                        const ModelShard& shard,
                        const ops::ThreadPlan& threads,
                        std::unique_ptr<TargetGroup> group) {
  const ModelConfig& config = requirement.config;
  gpu::Device& device = *assignment.device;
  const gpu::OpTable& ops = assignment.backend->ops;
  std::shared_ptr<const GpuWeights> weights =
      is_synthetic(name)
          ? random_gpu_weights(
                device, ops, config, shard, parse_synthetic(name).recipe, requirement.format)
          : upload_weights(device,
                           config,
                           shard,
                           weights_of(name, role, config, shard, threads),
                           requirement.format);
  LoadedModel parts;
  parts.group = std::move(group);
  parts.assignment = std::move(assignment);
  parts.model = std::make_unique<GpuTransformer>(
      config, std::move(weights), shard, requirement.options, requirement.gpu, device, ops);
  if (parts.group->size() == 1) join(parts, make_solo_device_group(ops));
  return parts;
}

// parts: with its group.
void load_on_cpu(LoadedModel& parts,
                 const RunConfig& config,
                 Role role,
                 const ModelConfig& model_config,
                 const ModelShard& shard,
                 const ModelOptions& options,
                 const ops::ThreadPlan& threads) {
  const bool is_draft = role == Role::kDraft;
  parts.context = std::make_unique<ops::Context>(threads, ops::isa_from_name(config.isa));
  parts.context->set_activations(activations_of(config, model_config));
  std::unique_ptr<Weights> weights = weights_of(
      is_draft ? config.speculative.model : config.model, role, model_config, shard, threads);
  if ((is_draft ? config.speculative.quantization : config.quantization) == "fp8") {
    log_warning("quantization fp8 on a CPU is for comparisons: the numbers of a GPU in float32");
    round_to_e4m3(model_config, shard, *weights);
  }
  parts.model = std::make_unique<Transformer>(
      model_config, std::move(weights), shard, options, *parts.group, *parts.context);
  log_memory(*parts.model, threads);
}

}  // namespace

std::string LoadedModel::device_name() const {
  return assignment.device == nullptr ? "cpu" : assignment.device->info().name;
}

LoadedModel load_target(const RunConfig& config,
                        const RankLayout& layout,
                        int rank,
                        const ops::ThreadPlan& threads,
                        std::unique_ptr<TargetGroup> group,
                        DeviceAssignment assignment) {
  if (config.quantization == "fp8" && config.numerics == "strict" && layout.num_targets > 1) {
    throw Error(
        "quantization fp8 does not go with numerics strict on several ranks: each has scales of "
        "its own");
  }
  const ModelConfig model_config = model_config_of(config, Role::kTarget);
  const EngineSizes sizes = engine_sizes(config, model_config, layout);
  const ModelShard shard =
      shard_model(model_config, rank, layout.num_targets, numerics_from_name(config.numerics));
  if (config.device == "cuda" && !is_simulated(config.model)) {
    if (!assignment.device) assignment = assign_device(config, {}, false);
    MemoryRequirement requirement = target_requirement(config, sizes, layout);
    requirement.options.num_blocks = gpu_blocks(config, sizes, layout, assignment);
    return load_on_gpu(std::move(assignment),
                       config.model,
                       Role::kTarget,
                       requirement,
                       shard,
                       threads,
                       std::move(group));
  }
  const ModelOptions options = target_options(config, sizes, model_config);
  LoadedModel parts;
  parts.group = std::move(group);
  if (is_simulated(config.model)) {
    parts.held = std::make_unique<ops::PinnedThread>(threads, 0);
    parts.model = std::make_unique<SimulatedModel>(
        simulated_target(config), SimulatedRole::kTarget, shard, options);
    return parts;
  }
  load_on_cpu(parts, config, Role::kTarget, model_config, shard, options, threads);
  return parts;
}

void begin_together(LoadedModel& loaded,
                    const RunConfig& config,
                    const std::function<void()>& check_alive) {
  if (!loaded.assignment.device || loaded.device_group) return;
  const Model& model = *loaded.model;
  join(loaded,
       make_device_group(*loaded.assignment.device,
                         *loaded.assignment.backend,
                         *loaded.group,
                         {.wanted = device_sums_from_name(config.device_sums),
                          .max_count = most_summed_at_once(model.options(), model.config()),
                          .check_alive = check_alive}));
}

void begin_alone(LoadedModel& loaded) {
  if (!loaded.assignment.device || loaded.device_group) return;
  join(loaded,
       make_silent_device_group(loaded.assignment.backend->ops, loaded.model->shard().num_ranks));
}

LoadedModel load_draft(const RunConfig& config,
                       const RankLayout& layout,
                       const ops::ThreadPlan& threads,
                       DeviceAssignment assignment) {
  if (is_simulated(config.speculative.model) != is_simulated(config.model))
    throw Error("a simulated draft needs a simulated target, and the other way round");
  if (is_simulated(config.model)) check_simulated_pair(config);
  const ModelConfig target_config = model_config_of(config.model, Role::kTarget);
  return load_draft(config,
                    layout,
                    {.sizes = engine_sizes(config, target_config, layout),
                     .vocabulary = draft_vocabulary(config)},
                    threads,
                    std::move(assignment));
}

LoadedModel load_draft(const RunConfig& config,
                       const RankLayout& layout,
                       DraftSettings settings,
                       const ops::ThreadPlan& threads,
                       DeviceAssignment assignment) {
  const std::string& name = config.speculative.model;
  const EngineSizes& sizes = settings.sizes;
  std::shared_ptr<const VocabularyMap> vocabulary = std::move(settings.vocabulary);
  const ModelConfig model_config = model_config_of(config, Role::kDraft);
  // A text has more tokens in a vocabulary that knows fewer of its words.
  const int32_t num_blocks =
      vocabulary == nullptr ? sizes.num_blocks : std::min(sizes.num_blocks, INT32_MAX / 2) * 2;
  // KV memory that is never used is never taken from the system.
  const int32_t blocks_of_branch = 2 + config.speculative.longest_draft_len() / config.block_size;
  const int32_t num_branch_blocks = std::min(num_blocks, kMaxDraftBranches * blocks_of_branch);
  ModelOptions options = draft_options(config, sizes, model_config);
  options.num_blocks = num_blocks + (vocabulary == nullptr ? num_branch_blocks : 0);
  const ModelShard shard = shard_model(model_config, 0, 1);
  LoadedModel parts;
  parts.group = make_solo_group();
  if (is_simulated(name)) {
    parts.model = std::make_unique<SimulatedModel>(
        simulated_draft(config), SimulatedRole::kDraft, shard, options);
    return parts;
  }
  if (is_draft_on_gpu(config)) {
    if (!assignment.device)
      assignment = assign_device(config, {.num_targets = 0, .has_draft = true}, true);
    MemoryRequirement requirement = draft_requirement(config, sizes);
    requirement.options.num_blocks =
        std::min(options.num_blocks, gpu_blocks(config, sizes, layout, assignment));
    if (vocabulary != nullptr) requirement.gpu.max_positions *= 2;
    parts = load_on_gpu(std::move(assignment),
                        name,
                        Role::kDraft,
                        requirement,
                        shard,
                        threads,
                        std::move(parts.group));
    parts.vocabulary = std::move(vocabulary);
    return parts;
  }
  load_on_cpu(parts, config, Role::kDraft, model_config, shard, options, threads);
  parts.vocabulary = std::move(vocabulary);
  return parts;
}

}  // namespace outrider
