// See gpu_loader.h.
#include "runtime/ranks/gpu_loader.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

GpuProvider provider = gpu::cuda_backend;

}  // namespace

void set_gpu_provider(GpuProvider new_provider) { provider = new_provider; }

GpuWeightFormat gpu_weight_format(const RunConfig& config, const std::string& quantization) {
  if (quantization == "int8") {
    throw Error("quantization int8 is for device cpu; on GPUs there is fp8");
  }
  if (config.activation_dtype == "float32") {
    if (quantization == "fp8") throw Error("quantization fp8 does not go with float32 activations");
    return GpuWeightFormat::kF32;
  }
  return quantization == "fp8" ? GpuWeightFormat::kFp8 : GpuWeightFormat::kAuto;
}

gpu::Type gpu_kv_type(const ModelConfig& config, GpuWeightFormat format) {
  return activation_type(matrix_type(gpu_type(config.dtype), format));
}

GpuSeat take_gpu_seat(const RunConfig& config, const HostPlace& place, bool draft_on_gpu) {
  GpuSeat seat;
  seat.backend = &provider();
  const int num_devices = seat.backend->num_devices();
  // Told which one, all ranks of the host were told the same.
  const bool is_given = config.cuda_device >= 0;
  const auto ordinal_of = [&](int index) {
    return is_given ? config.cuda_device : index % num_devices;
  };
  const int ordinal = ordinal_of(place.index);
  if (ordinal >= num_devices) {
    throw Error(fmt::format(
        "cuda_device {} does not exist; this machine shows {} GPU(s)", ordinal, num_devices));
  }
  for (int target = 0; target < place.num_targets; ++target) {
    seat.num_targets += ordinal_of(target) == ordinal ? 1 : 0;
  }
  seat.has_draft = draft_on_gpu && place.has_draft && ordinal_of(place.num_targets) == ordinal;
  seat.device = seat.backend->open(ordinal);
  return seat;
}

GpuModel load_gpu_model(GpuSeat seat, const GpuModelSource& source, TargetGroup& host_group) {
  GpuModel parts;
  parts.device = std::move(seat.device);
  const gpu::OpTable& ops = seat.backend->ops;
  std::shared_ptr<const GpuWeights> weights =
      source.recipe
          ? random_gpu_weights(
                *parts.device, ops, source.config, source.shard, *source.recipe, source.format)
          : upload_weights(
                *parts.device, source.config, source.shard, source.read_weights(), source.format);
  parts.group = host_group.size() == 1
                    ? make_solo_device_group(ops)
                    : make_staged_device_group(*parts.device,
                                               ops,
                                               host_group,
                                               static_cast<size_t>(source.options.max_rows) *
                                                   static_cast<size_t>(source.config.hidden_dim));
  parts.model = std::make_unique<GpuTransformer>(source.config,
                                                 std::move(weights),
                                                 source.shard,
                                                 source.options,
                                                 source.gpu,
                                                 *parts.device,
                                                 ops,
                                                 *parts.group);
  parts.model->warm_up();
  const gpu::DeviceInfo info = parts.device->info();
  const Model::Memory& memory = parts.model->memory();
  log_info(
      "GPU {} ({}): {} MiB of weights, {} MiB of KV, {} MiB of buffers, {} graphs; {} of {} "
      "MiB are free",
      info.ordinal,
      info.name,
      memory.weights >> 20,
      memory.kv >> 20,
      memory.buffers >> 20,
      parts.model->num_graphs(),
      info.free_bytes >> 20,
      info.total_bytes >> 20);
  if (host_group.size() > 1) log_info("sums over the ranks: {}", parts.group->name());
  return parts;
}

}  // namespace outrider
