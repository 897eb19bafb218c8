// From options to models in memory: which folder a name means, how long the context is, how much KV
// memory there is, and one rank's shard of the target or the whole draft. Every rank computes the
// same sizes from the same options.
#pragma once

#include <filesystem>
#include <memory>

#include "models/transformer.h"
#include "models/vocabulary_map.h"
#include "models/vocabulary_match.h"
#include "runtime/base/run_config.h"
#include "runtime/ranks/gpu_loader.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// A folder as given, or of the embedded pair for "embedded" (role picks target or draft). Throws
// Error when there is no such folder.
std::filesystem::path model_folder(const std::string& name, Role role);

// "synth:SHAPE": random weights in a shape of models/synthetic.h, for benchmarks. There is no
// folder and no tokenizer. "synth:SHAPE?epsilon=0.09": how much the layers after the first two
// change, so how seldom a draft of those two is right.
bool is_synthetic(const std::string& name);
// Synthetic, or simulated (models/simulated_spec.h): neither folder nor tokenizer.
bool has_no_files(const std::string& name);
// Of a folder, the embedded pair, a synthetic or a simulated model.
ModelConfig model_config_of(const std::string& name, Role role);
// Of the config's target or draft, with what its weights become at load.
ModelConfig model_config_of(const RunConfig& config, Role role);

// Whether the draft speaks the target's tokens; names as above. Throws Error when a tokenizer or a
// configuration is missing or damaged.
VocabularyMatch match_pair(const std::string& target, const std::string& draft);

// Whether the draft of a config reads and proposes the target's ids as they are: no translation.
bool drafts_in_target_ids(const RunConfig& config);

// Sizes every rank agrees on.
struct EngineSizes {
  int32_t max_model_len = 0;
  int32_t max_rows = 0;             // of a step
  int32_t blocks_per_sequence = 0;  // of the longest text with its longest draft
  int32_t num_blocks = 0;           // of the KV memory of a target rank on a CPU
};
EngineSizes engine_sizes(const RunConfig& config,
                         const ModelConfig& target,
                         const RankLayout& layout);

// What a model's products do on this machine under the config's activation_dtype. Of `auto` target
// ranks on different CPUs may think differently; the roll call finds out.
ops::Activations activations_of(const RunConfig& config, const ModelConfig& model);

// A model ready to run, with what it must not outlive.
struct LoadedModel {
  std::unique_ptr<ops::Context> context;  // null: simulated, or on a GPU
  std::unique_ptr<TargetGroup> group;
  std::unique_ptr<gpu::Device> device;        // null: not on a GPU
  std::unique_ptr<DeviceGroup> device_group;  // the same
  std::unique_ptr<Model> model;
  std::shared_ptr<const VocabularyMap>
      vocabulary;  // a draft whose ids are not the target's; or null
};

LoadedModel load_target(const RunConfig& config,
                        const RankLayout& layout,
                        int rank,
                        const ops::ThreadPlan& threads,
                        std::unique_ptr<TargetGroup> group,
                        const HostPlace& place = {});
// Also checks that the draft speaks the target's tokens, or may have another tokenizer; throws
// Error naming the first id that differs.
LoadedModel load_draft(const RunConfig& config,
                       const RankLayout& layout,
                       const ops::ThreadPlan& threads,
                       const HostPlace& place = {.index = 1});

}  // namespace outrider
