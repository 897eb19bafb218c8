// See model_loader.h.
#include "runtime/ranks/model_loader.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "models/e4m3_weights.h"
#include "models/simulated.h"
#include "models/synthetic.h"
#include "models/tokenizer.h"
#include "models/weights.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/process_memory.h"
#include "runtime/ranks/draft/rides.h"
#include "runtime/ranks/gpu_memory.h"

namespace outrider {
namespace {

constexpr std::string_view kSyntheticPrefix = "synth:";
constexpr int64_t kMostDefaultKvBytes = int64_t{4} << 30;

std::filesystem::path embedded_folder(const std::string& name) {
  std::vector<std::filesystem::path> places;
  if (const char* share = std::getenv("OUTRIDER_SHARE")) places.emplace_back(share);
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  places.push_back(program.parent_path() / ".." / "share" / "outrider");
  places.push_back(program.parent_path() / "..");  // build/ beside the sources
  places.emplace_back(OUTRIDER_SOURCE_DIR);
  for (const auto& place : places) {
    const auto folder = place / "models" / "embedded" / name;
    if (std::filesystem::is_directory(folder, ignored))
      return std::filesystem::weakly_canonical(folder);
  }
  throw Error(
      "the embedded pair is not beside the program; set OUTRIDER_SHARE to the folder that holds "
      "models/embedded");
}

// What can be known of a pair without weights.
struct Pair {
  std::shared_ptr<const Tokenizer> target;
  std::shared_ptr<const Tokenizer> draft;
  ModelConfig target_config;
  ModelConfig draft_config;
};

Pair load_pair(const std::string& target, const std::string& draft) {
  for (const std::string& name : {target, draft}) {
    if (has_no_files(name))
      throw Error(fmt::format("'{}' is synthetic or simulated: it has no tokenizer", name));
  }
  const auto target_folder = model_folder(target, Role::kTarget);
  const auto draft_folder = model_folder(draft, Role::kDraft);
  return {Tokenizer::load(target_folder),
          Tokenizer::load(draft_folder),
          load_model_config(target_folder),
          load_model_config(draft_folder)};
}

VocabularyMatch match(const Pair& pair) {
  return match_vocabularies(pair.target, pair.target_config, pair.draft, pair.draft_config);
}

bool needs_no_translation(const VocabularyMatch& found) {
  return found.usable_directly() && found.draft_embeds_all;
}

// How the draft says the target's tokens; null when it has the same ids. Padding rows are no
// difference, but a draft with too few rows for the target's tokens is told of those by their text.
std::shared_ptr<const VocabularyMap> draft_vocabulary(const RunConfig& config) {
  const std::string& draft_name = config.speculative.model;
  if (has_no_files(config.model) || has_no_files(draft_name)) return nullptr;
  const Pair pair = load_pair(config.model, draft_name);
  const VocabularyMatch found = match(pair);
  if (needs_no_translation(found)) return nullptr;
  const bool may_translate = found.usable_directly() || config.speculative.use_heterogeneous_vocab;
  if (!may_translate || found.num_translatable == 0)
    throw Error(fmt::format(
        "draft '{}' cannot serve target '{}': {}", draft_name, config.model, describe(found)));
  log_info("the draft is translated: {} of the target's {} tokens can be drafted",
           found.num_translatable,
           found.num_target_tokens);
  return std::make_shared<VocabularyMap>(
      pair.target, found.num_target_rows, pair.draft, found.num_draft_rows);
}

double gigabytes(size_t num_bytes) { return static_cast<double>(num_bytes) / 1e9; }

// Logs a line about every two seconds while a large model loads.
class LoadLog {
 public:
  explicit LoadLog(std::string what) : what_(std::move(what)) {}

  void advance(size_t done, size_t all) {
    const auto now = Clock::now();
    if (now - last_ < std::chrono::seconds(2)) return;
    last_ = now;
    log_info("loading {}: {:.1f} of {:.1f} GB ({} %), {:.2f} GB/s",
             what_,
             gigabytes(done),
             gigabytes(all),
             done * 100 / std::max<size_t>(1, all),
             gigabytes(done) / seconds());
  }

  void finish(size_t num_bytes) const {
    log_info("loaded {}: {:.3f} GB in {:.2f} s, {:.2f} GB/s",
             what_,
             gigabytes(num_bytes),
             seconds(),
             gigabytes(num_bytes) / seconds());
  }

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const {
    return std::max(1e-9, std::chrono::duration<double>(Clock::now() - begin_).count());
  }

  std::string what_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
};

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

struct SyntheticName {
  std::string shape;
  SyntheticRecipe recipe;
};

// "synth:SHAPE" or "synth:SHAPE?epsilon=0.09".
SyntheticName parse_synthetic(const std::string& name) {
  constexpr std::string_view kEpsilon = "epsilon=";
  SyntheticName parsed;
  const size_t mark = name.find('?');
  parsed.shape = name.substr(kSyntheticPrefix.size(), mark - kSyntheticPrefix.size());
  if (mark == std::string::npos) return parsed;
  const std::string_view given = std::string_view(name).substr(mark + 1);
  const char* end = name.data() + name.size();
  const char* begin = given.data() + std::min(kEpsilon.size(), given.size());
  double& epsilon = parsed.recipe.epsilon;
  const bool is_number =
      given.starts_with(kEpsilon) && begin < end && std::from_chars(begin, end, epsilon).ptr == end;
  if (!is_number || !(epsilon >= 0 && epsilon <= 1))
    throw Error(fmt::format("'{}': only epsilon=0 to 1 may follow the question mark", name));
  return parsed;
}

// With as many threads as will compute: each touches first what it will read.
std::unique_ptr<Weights> weights_of(const std::string& name,
                                    Role role,
                                    const ModelConfig& config,
                                    const ModelShard& shard,
                                    const ops::ThreadPlan& threads) {
  if (is_synthetic(name)) {
    // Making numbers takes longer than computing with them: all the host's cores, unless the
    // memory's place matters.
    const ops::ThreadPlan makers = threads.cpus.empty() ? ops::ThreadPlan(0) : threads;
    return synthetic_weights(config, shard, parse_synthetic(name).recipe, makers);
  }
  const auto folder = model_folder(name, role);
  LoadLog log(folder.filename().string());
  const auto progress = [&log](size_t done, size_t all) { log.advance(done, all); };
  auto weights = load_weights(folder, config, shard, progress, threads);
  log.finish(weights->num_bytes_read);
  return weights;
}

SimulatedSpec simulated_target(const RunConfig& config) {
  SimulatedSpec spec = parse_simulated(config.model);
  if (!spec.alpha.empty())
    throw Error("simulated model: alpha is the draft's; the target has none");
  return spec;
}

// Another seed, vocabulary or number of dialects would be another language.
SimulatedSpec simulated_draft(const RunConfig& config) {
  SimulatedSpec spec = parse_simulated(config.speculative.model);
  const SimulatedSpec target = parse_simulated(config.model);
  const auto check_same = [](const char* key, auto draft_value, auto target_value) {
    if (draft_value == target_value) return;
    throw Error(fmt::format(
        "simulated draft: {} is {} where the target's is {}", key, draft_value, target_value));
  };
  check_same("seed", spec.seed, target.seed);
  check_same("vocab", spec.vocab, target.vocab);
  check_same("dialects", spec.dialects, target.dialects);
  if (spec.alpha.empty()) spec.alpha = {kDefaultSimulatedAlpha};
  return spec;
}

}  // namespace

std::filesystem::path model_folder(const std::string& name, Role role) {
  if (name == "embedded") return embedded_folder(role == Role::kDraft ? "draft" : "target");
  if (!std::filesystem::is_directory(name)) {
    throw Error(fmt::format(
        "model folder '{}' does not exist (nothing is downloaded: give a Hugging Face folder)",
        name));
  }
  return name;
}

bool is_synthetic(const std::string& name) { return name.starts_with(kSyntheticPrefix); }

bool has_no_files(const std::string& name) { return is_synthetic(name) || is_simulated(name); }

ModelConfig model_config_of(const RunConfig& config, Role role) {
  const bool is_draft = role == Role::kDraft;
  ModelConfig model = model_config_of(is_draft ? config.speculative.model : config.model, role);
  model.load_format = load_format(is_draft ? config.speculative.quantization : config.quantization);
  return model;
}

ModelConfig model_config_of(const std::string& name, Role role) {
  if (is_synthetic(name)) return synthetic_shape(parse_synthetic(name).shape);
  if (is_simulated(name)) return simulated_config(parse_simulated(name));
  return load_model_config(model_folder(name, role));
}

VocabularyMatch match_pair(const std::string& target, const std::string& draft) {
  return match(load_pair(target, draft));
}

bool drafts_in_target_ids(const RunConfig& config) {
  if (has_no_files(config.model) || has_no_files(config.speculative.model)) return true;
  return needs_no_translation(match_pair(config.model, config.speculative.model));
}

EngineSizes engine_sizes(const RunConfig& config,
                         const ModelConfig& target,
                         const RankLayout& layout) {
  EngineSizes sizes;
  sizes.max_model_len = config.max_model_len > 0 ? config.max_model_len : target.max_positions;
  if (sizes.max_model_len > target.max_positions) {
    throw Error(fmt::format("max_model_len {} is more than the model's {} positions",
                            config.max_model_len,
                            target.max_positions));
  }
  const int64_t block_size = config.block_size;
  const auto block_bytes = static_cast<int64_t>(Transformer::kv_bytes_per_block(
      target,
      shard_model(target, 0, layout.num_targets, numerics_from_name(config.numerics)),
      config.block_size));
  const int64_t blocks_per_sequence =
      (sizes.max_model_len + config.speculative.longest_draft_len() + block_size) / block_size;
  sizes.blocks_per_sequence = static_cast<int32_t>(blocks_per_sequence);
  // Every running sequence must fit with its draft rows, or draft rows would be cut for no reason.
  sizes.max_rows = std::max(config.max_num_batched_tokens, config.max_num_seqs);
  const int64_t wanted = blocks_per_sequence * config.max_num_seqs;
  if (config.device == "cuda") {  // as many as its GPU has room for
    sizes.num_blocks = static_cast<int32_t>(std::min<int64_t>(wanted, INT32_MAX / 4));
    return sizes;
  }
  const int64_t budget =
      config.kv_cache_memory_bytes > 0 ? config.kv_cache_memory_bytes : kMostDefaultKvBytes;
  const int64_t num_blocks = std::min(wanted, budget / block_bytes);
  if (num_blocks < blocks_per_sequence) {
    throw Error(
        fmt::format("kv_cache_memory_bytes {} holds {} tokens, fewer than max_model_len {}: raise "
                    "the one or lower the other",
                    budget,
                    num_blocks * block_size,
                    sizes.max_model_len));
  }
  sizes.num_blocks = static_cast<int32_t>(num_blocks);
  return sizes;
}

ops::Activations activations_of(const RunConfig& config, const ModelConfig& model) {
  // Smaller models are quick anyway; they keep the more exact product.
  constexpr int32_t kLeastRoundedDim = 512;
  if (config.activation_dtype == "float32") return ops::Activations::kF32;
  if (config.activation_dtype == "bfloat16") return ops::Activations::kBF16;
  const bool fast = ops::has_bf16_dot() && ops::isa_from_name(config.isa) == ops::Isa::kAvx512;
  return fast && model.hidden_dim >= kLeastRoundedDim ? ops::Activations::kBF16
                                                      : ops::Activations::kF32;
}

namespace {

// Of a target rank, without KV.
ModelOptions target_options(const RunConfig& config, const EngineSizes& sizes) {
  return {.block_size = config.block_size,
          .num_blocks = sizes.num_blocks,
          .max_rows = sizes.max_rows,
          .max_logit_rows = sizes.max_rows};
}

// With room for what it prepares while the target verifies (runtime/ranks/draft/rides.h).
ModelOptions draft_options(const RunConfig& config, const EngineSizes& sizes) {
  return {.block_size = config.block_size,
          .num_blocks = sizes.num_blocks,
          .max_rows = sizes.max_rows + DraftRides::kMaxBranches,
          .max_logit_rows = config.max_num_seqs + DraftRides::kMaxBranches};
}

bool is_draft_on_gpu(const RunConfig& config) {
  const std::string& own = config.speculative.device;
  return (own == "auto" ? config.device : own) == "cuda";
}

GpuOptions gpu_options(const RunConfig& config,
                       const EngineSizes& sizes,
                       const ModelConfig& model,
                       GpuWeightFormat format,
                       gpu::Priority priority) {
  return {.max_positions = sizes.blocks_per_sequence * config.block_size,
          .kv_type = gpu_kv_type(model, format),
          .priority = priority,
          .enforce_eager = config.enforce_eager};
}

GpuDemand target_demand(const RunConfig& config,
                        const EngineSizes& sizes,
                        const RankLayout& layout) {
  const ModelConfig model = model_config_of(config, Role::kTarget);
  const GpuWeightFormat format = gpu_weight_format(config, config.quantization);
  return {.config = model,
          .shard = shard_model(model, 0, layout.num_targets, numerics_from_name(config.numerics)),
          .format = format,
          .options = target_options(config, sizes),
          .gpu = gpu_options(config, sizes, model, format, gpu::Priority::kNormal)};
}

GpuDemand draft_demand(const RunConfig& config, const EngineSizes& sizes) {
  const ModelConfig model = model_config_of(config, Role::kDraft);
  const GpuWeightFormat format = gpu_weight_format(config, config.speculative.quantization);
  return {.config = model,
          .shard = shard_model(model, 0, 1),
          .format = format,
          .options = draft_options(config, sizes),
          .gpu = gpu_options(config, sizes, model, format, gpu::Priority::kHigh)};
}

// KV blocks of everyone on the GPU of `seat`: of the target only what it was allowed.
int32_t gpu_blocks(const RunConfig& config,
                   const EngineSizes& sizes,
                   const RankLayout& layout,
                   const GpuSeat& seat) {
  std::vector<GpuDemand> demands;
  if (config.device == "cuda" && seat.num_targets > 0) {
    demands.push_back(target_demand(config, sizes, layout));
    demands.back().num_copies = seat.num_targets;
  }
  if (seat.has_draft) demands.push_back(draft_demand(config, sizes));
  const int32_t most = shared_num_blocks(demands,
                                         config.gpu_memory_utilization,
                                         seat.device->info().total_bytes,
                                         sizes.blocks_per_sequence);
  if (config.kv_cache_memory_bytes == 0) return most;
  const GpuDemand& first = demands.front();
  const int64_t allowed = config.kv_cache_memory_bytes /
                          static_cast<int64_t>(gpu_kv_bytes_per_block(
                              first.config, first.shard, config.block_size, first.gpu.kv_type));
  if (allowed >= sizes.blocks_per_sequence) {
    return static_cast<int32_t>(std::min<int64_t>(most, allowed));
  }
  throw Error(fmt::format(
      "kv_cache_memory_bytes {} holds {} tokens, fewer than max_model_len {}: raise the one or "
      "lower the other",
      config.kv_cache_memory_bytes,
      allowed * config.block_size,
      sizes.max_model_len));
}

// Numbers of synthetic models are drawn on the device.
LoadedModel load_on_gpu(GpuSeat seat,
                        const std::string& name,
                        Role role,
                        const GpuDemand& demand,
                        const ModelShard& shard,
                        const ops::ThreadPlan& threads,
                        std::unique_ptr<TargetGroup> group) {
  GpuModelSource source{.config = demand.config,
                        .shard = shard,
                        .format = demand.format,
                        .options = demand.options,
                        .gpu = demand.gpu};
  if (is_synthetic(name)) source.recipe = parse_synthetic(name).recipe;
  source.read_weights = [&] { return weights_of(name, role, source.config, shard, threads); };
  LoadedModel parts;
  parts.group = std::move(group);
  GpuModel loaded = load_gpu_model(std::move(seat), source, *parts.group);
  parts.device = std::move(loaded.device);
  parts.device_group = std::move(loaded.group);
  parts.model = std::move(loaded.model);
  return parts;
}

std::unique_ptr<Weights> cpu_weights_of(const std::string& name,
                                        Role role,
                                        const ModelConfig& config,
                                        const ModelShard& shard,
                                        const ops::ThreadPlan& threads,
                                        const std::string& quantization) {
  std::unique_ptr<Weights> weights = weights_of(name, role, config, shard, threads);
  if (quantization == "fp8") {
    log_warning("quantization fp8 on a CPU is for comparisons: the numbers of a GPU in float32");
    round_to_e4m3(config, shard, *weights);
  }
  return weights;
}

}  // namespace

LoadedModel load_target(const RunConfig& config,
                        const RankLayout& layout,
                        int rank,
                        const ops::ThreadPlan& threads,
                        std::unique_ptr<TargetGroup> group,
                        const HostPlace& place) {
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
    GpuSeat seat = take_gpu_seat(config, place, is_draft_on_gpu(config));
    GpuDemand demand = target_demand(config, sizes, layout);
    demand.options.num_blocks = gpu_blocks(config, sizes, layout, seat);
    return load_on_gpu(
        std::move(seat), config.model, Role::kTarget, demand, shard, threads, std::move(group));
  }
  const ModelOptions options = target_options(config, sizes);
  LoadedModel parts;
  parts.group = std::move(group);
  if (is_simulated(config.model)) {
    parts.model = std::make_unique<SimulatedModel>(
        simulated_target(config), SimulatedRole::kTarget, shard, options);
    return parts;
  }
  parts.context = std::make_unique<ops::Context>(threads, ops::isa_from_name(config.isa));
  parts.context->set_activations(activations_of(config, model_config));
  parts.model = std::make_unique<Transformer>(
      model_config,
      cpu_weights_of(
          config.model, Role::kTarget, model_config, shard, threads, config.quantization),
      shard,
      options,
      *parts.group,
      *parts.context);
  log_memory(*parts.model, threads);
  return parts;
}

LoadedModel load_draft(const RunConfig& config,
                       const RankLayout& layout,
                       const ops::ThreadPlan& threads,
                       const HostPlace& place) {
  const std::string& name = config.speculative.model;
  if (is_simulated(name) != is_simulated(config.model))
    throw Error("a simulated draft needs a simulated target, and the other way round");
  std::shared_ptr<const VocabularyMap> vocabulary = draft_vocabulary(config);
  const ModelConfig target_config = model_config_of(config.model, Role::kTarget);
  const ModelConfig model_config = model_config_of(config, Role::kDraft);
  const EngineSizes sizes = engine_sizes(config, target_config, layout);
  // A text has more tokens in a vocabulary that knows fewer of its words.
  const int32_t num_blocks =
      vocabulary == nullptr ? sizes.num_blocks : std::min(sizes.num_blocks, INT32_MAX / 2) * 2;
  // KV memory that is never used is never taken from the system.
  const int32_t blocks_of_branch = 2 + config.speculative.longest_draft_len() / config.block_size;
  const int32_t num_branch_blocks =
      std::min(num_blocks, DraftRides::kMaxBranches * blocks_of_branch);
  ModelOptions options = draft_options(config, sizes);
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
    GpuSeat seat = take_gpu_seat(config, place, true);
    GpuDemand demand = draft_demand(config, sizes);
    demand.options.num_blocks =
        std::min(options.num_blocks, gpu_blocks(config, sizes, layout, seat));
    if (vocabulary != nullptr) demand.gpu.max_positions *= 2;
    parts = load_on_gpu(
        std::move(seat), name, Role::kDraft, demand, shard, threads, std::move(parts.group));
    parts.vocabulary = std::move(vocabulary);
    return parts;
  }
  parts.context = std::make_unique<ops::Context>(threads, ops::isa_from_name(config.isa));
  parts.context->set_activations(activations_of(config, model_config));
  parts.model = std::make_unique<Transformer>(
      model_config,
      cpu_weights_of(
          name, Role::kDraft, model_config, shard, threads, config.speculative.quantization),
      shard,
      options,
      *parts.group,
      *parts.context);
  parts.vocabulary = std::move(vocabulary);
  log_memory(*parts.model, threads);
  return parts;
}

}  // namespace outrider
