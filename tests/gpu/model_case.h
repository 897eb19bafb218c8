// A model on a GPU, on one rank or as a member of a group, for the tests of
// GpuTransformer.
#pragma once

#include "models/gpu/transformer.h"
#include "runtime/comm/device/device_group.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/models/strict_checks.h"

namespace outrider::test {

struct CaseModel {
  const gpu::OpTable& ops = gpu::test_backend().ops;
  std::unique_ptr<gpu::Device> device = gpu::test_backend().open(0);
  std::unique_ptr<DeviceGroup> group;
  std::unique_ptr<GpuTransformer> model;
  size_t weight_bytes = 0;

  CaseModel(const StrictModel& source,
            TargetGroup& host_group,
            Numerics numerics,
            GpuWeightFormat format = GpuWeightFormat::kAuto,
            bool enforce_eager = false) {
    const ModelShard shard = shard_of(source.config, host_group, numerics);
    make(source.config, shard, weights_of(source, shard), host_group, format, enforce_eager);
  }
  CaseModel(const ModelConfig& config, std::unique_ptr<Weights> weights, TargetGroup& host_group) {
    const ModelShard shard = shard_of(config, host_group, Numerics::kFast);
    make(config, shard, std::move(weights), host_group, GpuWeightFormat::kAuto, false);
  }
  // With the weights of a folder.
  CaseModel(const std::filesystem::path& folder,
            const ModelConfig& config,
            TargetGroup& host_group,
            Numerics numerics,
            GpuWeightFormat format) {
    const ModelShard shard = shard_of(config, host_group, numerics);
    make(config, shard, load_weights(folder, config, shard), host_group, format, false);
  }

 private:
  static ModelShard shard_of(const ModelConfig& config, TargetGroup& group, Numerics numerics) {
    return shard_model(config, group.rank(), group.size(), numerics);
  }
  void make(const ModelConfig& config,
            const ModelShard& shard,
            std::unique_ptr<Weights> host,
            TargetGroup& host_group,
            GpuWeightFormat format,
            bool enforce_eager) {
    std::shared_ptr<const GpuWeights> weights =
        upload_weights(*device, config, shard, std::move(host), format);
    weight_bytes = weights->num_bytes;
    group = host_group.size() == 1 ? make_solo_device_group(ops)
                                   : make_staged_device_group(*device, ops, host_group, 5000);
    const GpuOptions options = {.max_positions = 176,
                                .kv_type = activation_type(weights->layers[0].qkv.type),
                                .enforce_eager = enforce_eager};
    model = std::make_unique<GpuTransformer>(
        config, weights, shard, kStrictOptions, options, *device, ops);
    model->join(*group);
  }
};

}  // namespace outrider::test
