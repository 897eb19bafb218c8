// From options to models in memory: one rank's shard of the target, or the whole draft.
#pragma once

#include <functional>
#include <memory>

#include "models/forward/transformer.h"
#include "models/gpu/transformer.h"
#include "models/text/vocabulary_map.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/loading/cpu_dtypes.h"
#include "runtime/ranks/loading/device_assignment.h"
#include "runtime/ranks/loading/engine_sizes.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// A model ready to run, with what it must not outlive: members end in reverse order, so nothing is
// assigned over one that holds a model.
struct LoadedModel {
  std::unique_ptr<ops::Context> context;    // null: simulated, or on a GPU
  std::unique_ptr<ops::PinnedThread> held;  // simulated: the thread that a context would hold
  std::unique_ptr<TargetGroup> group;
  DeviceAssignment assignment;                // its device: null when not on a GPU
  std::unique_ptr<DeviceGroup> device_group;  // the same; and before begin_together()
  std::unique_ptr<Model> model;
  std::shared_ptr<const VocabularyMap>
      vocabulary;  // a draft whose ids are not the target's; or null

  // Its GPU's name, or "cpu".
  std::string device_name() const;
};

// One rank's shard. On a GPU that of `assignment`, or of a place of its own when that has none.
LoadedModel load_target(const RunConfig& config,
                        const RankLayout& layout,
                        int rank,
                        const ops::ThreadPlan& threads,
                        std::unique_ptr<TargetGroup> group,
                        DeviceAssignment assignment = {});

// Sets up what several target ranks on GPUs sum with, and records their graphs; nothing for others.
// Collective over the targets, once all of them have loaded their shards. Throws the same Error on
// all when that cannot be. check_alive: see DeviceSumsOptions.
void begin_together(LoadedModel& loaded,
                    const RunConfig& config,
                    const std::function<void()>& check_alive);

// The same for rank 0 alone: the others say nothing, and sums leave values as they are
// (measurements).
void begin_alone(LoadedModel& loaded);

// What a draft must know of its job: its sizes, and how it is translated, if it is.
struct DraftSettings {
  EngineSizes sizes;
  std::shared_ptr<const VocabularyMap> vocabulary = nullptr;
};
// Reads nothing of the target's; simulated drafts take their language as it is.
LoadedModel load_draft(const RunConfig& config,
                       const RankLayout& layout,
                       DraftSettings settings,
                       const ops::ThreadPlan& threads,
                       DeviceAssignment assignment);

// Also checks that the draft speaks the target's tokens, or may have another tokenizer; throws
// Error naming the first id that differs.
LoadedModel load_draft(const RunConfig& config,
                       const RankLayout& layout,
                       const ops::ThreadPlan& threads,
                       DeviceAssignment assignment = {});

}  // namespace outrider
