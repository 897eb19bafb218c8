// The groups that need no device code of their own, see device_group.h.
#include "runtime/comm/device/device_group.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace outrider {
namespace {

class SilentDeviceGroup final : public DeviceGroup {
 public:
  SilentDeviceGroup(const gpu::OpTable& ops, int size) : DeviceGroup(ops), size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::string name() const override { return size_ == 1 ? "solo" : "silent"; }
  bool is_capturable() const override { return true; }
  void all_reduce_sum(gpu::Stream&, float*, size_t, Fold) override {}

 private:
  const int size_;
};

class StagedDeviceGroup final : public DeviceGroup {
 public:
  StagedDeviceGroup(gpu::Device& device,
                    const gpu::OpTable& ops,
                    TargetGroup& group,
                    size_t max_count)
      : DeviceGroup(ops),
        group_(group),
        max_count_(max_count),
        values_(device, max_count * sizeof(float)) {
    OUTRIDER_CHECK(max_count > 0);
  }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string name() const override { return "staged"; }
  bool is_capturable() const override { return false; }

  void all_reduce_sum(gpu::Stream& stream, float* values, size_t count, Fold fold) override {
    for (size_t at = 0; at < count; at += max_count_) {
      const size_t piece = std::min(max_count_, count - at);
      stream.download(values_.as<float>(), values + at, piece * sizeof(float));
      stream.wait();
      group_.all_reduce_sum(std::span(values_.as<float>(), piece), fold);
      stream.upload(values + at, values_.as<float>(), piece * sizeof(float));
    }
  }

 private:
  TargetGroup& group_;
  const size_t max_count_;
  const gpu::PinnedBuffer values_;
};

}  // namespace

void DeviceGroup::sum_and_norm(gpu::Stream& stream, const SumAndNorm& args) {
  gpu::NormArgs norm = args.norm;
  const auto count = static_cast<size_t>(norm.max_rows) * static_cast<size_t>(norm.out.n);
  all_reduce_sum(stream, args.part, count, args.fold);
  norm.part = args.part;
  ops_.norm(stream, norm);
}

std::unique_ptr<DeviceGroup> make_solo_device_group(const gpu::OpTable& ops) {
  return make_silent_device_group(ops, 1);
}

std::unique_ptr<DeviceGroup> make_silent_device_group(const gpu::OpTable& ops, int size) {
  return std::make_unique<SilentDeviceGroup>(ops, size);
}

std::unique_ptr<DeviceGroup> make_staged_device_group(gpu::Device& device,
                                                      const gpu::OpTable& ops,
                                                      TargetGroup& group,
                                                      size_t max_count) {
  return std::make_unique<StagedDeviceGroup>(device, ops, group, max_count);
}

}  // namespace outrider
