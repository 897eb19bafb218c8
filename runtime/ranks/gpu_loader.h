// A model on a GPU, from options: which GPU, how much of its memory, and the weights' way there.
// Used by model_loader.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "models/gpu_transformer.h"
#include "models/synthetic.h"
#include "models/weights.h"
#include "runtime/base/run_config.h"
#include "runtime/comm/device_group.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider {

// A rank's place on its host: the draft comes after the targets.
struct HostPlace {
  int index = 0;
  int num_targets = 1;     // on this host
  bool has_draft = false;  // on this host
};

// Where GPUs come from: gpu::cuda_backend, unless a test puts an emulated device there.
using GpuProvider = const gpu::Backend& (*)();
void set_gpu_provider(GpuProvider provider);

// Of a model's weights on a GPU, by its options; throws Error for what only CPUs do.
GpuWeightFormat gpu_weight_format(const RunConfig& config, const std::string& quantization);
// Of keys and values.
gpu::Type gpu_kv_type(const ModelConfig& config, GpuWeightFormat format);

// An open GPU and who of this host's ranks is on it too.
struct GpuSeat {
  const gpu::Backend* backend = nullptr;
  std::unique_ptr<gpu::Device> device;
  int num_targets = 0;
  bool has_draft = false;
};
// Throws Error with one sentence when there is no such GPU.
GpuSeat take_gpu_seat(const RunConfig& config, const HostPlace& place, bool draft_on_gpu);

// The parts in the order in which they must outlive each other.
struct GpuModel {
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<DeviceGroup> group;
  std::unique_ptr<GpuTransformer> model;
};
struct GpuModelSource {
  ModelConfig config;
  ModelShard shard;
  GpuWeightFormat format = GpuWeightFormat::kAuto;
  ModelOptions options;
  GpuOptions gpu;
  std::optional<SyntheticRecipe> recipe;  // of weights that are drawn on the device
  std::function<std::unique_ptr<Weights>()> read_weights;  // else
};
GpuModel load_gpu_model(GpuSeat seat, const GpuModelSource& source, TargetGroup& group);

}  // namespace outrider
