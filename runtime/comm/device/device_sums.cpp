// See device_sums.h.
#include "runtime/comm/device/device_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/device/exchange_group.h"
#include "runtime/comm/device/hierarchical_group.h"
#include "runtime/comm/device/nccl_group.h"
#include "runtime/comm/group/agreed_setup.h"
#include "runtime/comm/host_id.h"
#include "runtime/ops/gpu/exchange.h"

namespace outrider {
namespace {

// Where a member is.
struct Whereabouts {
  HostId host{};
  std::array<char, 64> gpu{};  // DeviceInfo::uuid
};

// What all members know of all of them, so that all come to the same answer.
struct Layout {
  bool is_one_host = true;
  bool is_one_per_host = true;
  std::optional<std::pair<int, int>> sharing;  // the first two members on one GPU
};

Layout layout_of(TargetGroup& over_host, const gpu::Device& device, int host) {
  Whereabouts mine = {.host = this_host()};
  if (host >= 0) mine.host = {static_cast<char>('0' + host)};
  device.info().uuid.copy(mine.gpu.data(), mine.gpu.size() - 1);
  const auto all = gather_values(over_host, mine);
  Layout layout;
  for (size_t r = 1; r < all.size(); ++r) {
    layout.is_one_host = layout.is_one_host && all[r].host == all[0].host;
    for (size_t s = 0; s < r; ++s) {
      if (all[s].host == all[r].host) layout.is_one_per_host = false;
      if (all[s].gpu != all[r].gpu || layout.sharing) continue;
      layout.sharing = {static_cast<int>(s), static_cast<int>(r)};
    }
  }
  return layout;
}

// One sum that must be right: that memory can be mapped does not mean that what is written into it
// arrives (an IOMMU between GPUs). Made and unmade when nobody sums: where members share a GPU,
// taking and freeing memory may wait for sums that wait for this member.
class Trial {
 public:
  Trial(gpu::Device& device, int rank)
      : device_(device),
        stream_(device.make_stream(gpu::Priority::kNormal)),
        values_(device, kCount * sizeof(float)),
        host_(kCount) {
    for (size_t i = 0; i < kCount; ++i) host_[i] = value(rank, i);
    device_.upload_now(values_.data(), host_.data(), kCount * sizeof(float));
  }

  void sum(DeviceGroup& group) {
    group.all_reduce_sum(*stream_, values_.as<float>(), kCount, Fold::kRankOrder);
    group.wait(*stream_);
    device_.download_now(host_.data(), values_.data(), kCount * sizeof(float));
    for (size_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (int r = 0; r < group.size(); ++r) expected += value(r, i);
      if (!(host_[i] == expected)) {
        throw Error("what other ranks' GPUs wrote did not arrive as written");
      }
    }
  }

 private:
  static constexpr size_t kCount = 1000;
  // Small whole numbers: sums in any order are exact.
  static float value(int rank, size_t i) {
    return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13) % 256);
  }

  gpu::Device& device_;
  const std::unique_ptr<gpu::Stream> stream_;
  const gpu::Buffer values_;
  std::vector<float> host_;
};

class Chooser {
 public:
  Chooser(gpu::Device& device,
          const gpu::Backend& backend,
          TargetGroup& over_host,
          const DeviceSumsOptions& options)
      : device_(device), backend_(backend), over_host_(over_host), options_(options) {}

  std::unique_ptr<DeviceGroup> choose() {
    const Layout layout = layout_of(over_host_, device_, options_.host);
    std::string why_not;  // of all forms that are better than the one taken
    const auto take = [&](const char* form, const auto& make) -> std::unique_ptr<DeviceGroup> {
      try {
        return make();
      } catch (const Error& error) {  // the same on all members
        why_not += fmt::format("; not {}: {}", form, error.what());
        return nullptr;
      }
    };
    std::unique_ptr<DeviceGroup> group;
    if (layout.is_one_host && over_host_.size() > gpu::kMaxPeers) {
      why_not += fmt::format("; not exchange: more than {} ranks", gpu::kMaxPeers);
    } else if (layout.is_one_host) {
      group = take("exchange", [&] { return exchange(); });
    }
    if (!group && layout.sharing) {
      why_not += fmt::format(
          "; not nccl: ranks {} and {} share a GPU", layout.sharing->first, layout.sharing->second);
    } else if (!group) {
      if (!layout.is_one_host && !layout.is_one_per_host)
        group = take("hierarchical", [&] { return hierarchical(); });
      if (!group) group = take("nccl", [&] { return nccl(); });
    }
    if (!group) group = staged();
    if (over_host_.rank() == 0) {
      log_info("sums over the ranks' GPUs: {}{}", group->name(), why_not);
    }
    return group;
  }

  std::unique_ptr<DeviceGroup> exchange() {
    return tried(make_exchange_group(device_, backend_, over_host_, exchange_options()));
  }
  std::unique_ptr<DeviceGroup> hierarchical() {
    return tried(make_hierarchical_group(
        device_,
        backend_,
        over_host_,
        {.within = exchange_options(), .between = nccl_options(), .host = options_.host}));
  }
  std::unique_ptr<DeviceGroup> nccl() {
    return make_nccl_group(device_, backend_, over_host_, nccl_options());
  }

  std::unique_ptr<DeviceGroup> staged() {
    return make_staged_device_group(device_, backend_.ops, over_host_, options_.max_count);
  }

 private:
  ExchangeOptions exchange_options() const {
    return {.max_count = options_.max_count,
            .limit_s = options_.limit_s,
            .check_alive = options_.check_alive};
  }
  NcclOptions nccl_options() const {
    return {.library = options_.nccl_library,
            .max_count = options_.max_count,
            .limit_s = options_.limit_s,
            .check_alive = options_.check_alive};
  }
  std::unique_ptr<DeviceGroup> tried(std::unique_ptr<DeviceGroup> group) {
    const std::string what = "the exchange between GPUs does not work";
    std::optional<Trial> trial;
    set_up_together(over_host_, what, [&] { trial.emplace(device_, over_host_.rank()); });
    set_up_together(over_host_, what, [&] { trial->sum(*group); });
    return group;
  }

  gpu::Device& device_;
  const gpu::Backend& backend_;
  TargetGroup& over_host_;
  const DeviceSumsOptions& options_;
};

}  // namespace

DeviceSums device_sums_from_name(const std::string& name) {
  if (name == "auto") return DeviceSums::kAuto;
  if (name == "exchange") return DeviceSums::kExchange;
  if (name == "hierarchical") return DeviceSums::kHierarchical;
  if (name == "nccl") return DeviceSums::kNccl;
  if (name == "staged") return DeviceSums::kStaged;
  throw Error(
      fmt::format("device_sums '{}' is none of auto, exchange, hierarchical, nccl, staged", name));
}

size_t device_sums_bytes(DeviceSums wanted, int num_members, size_t max_count) {
  if (num_members == 1) return 0;
  const size_t parts = static_cast<size_t>(num_members) * max_count * sizeof(float);
  const auto exchange_of = [&](int members) {
    const auto slot_vectors = static_cast<uint32_t>((max_count + 3) / 4);
    return gpu::exchange_memory_vectors(members, slot_vectors) * sizeof(gpu::Vector4);
  };
  // Among several hosts a hierarchical group has fewer members in each part.
  const size_t exchange = exchange_of(std::min(num_members, gpu::kMaxPeers));
  switch (wanted) {
    case DeviceSums::kStaged:
      return 0;
    case DeviceSums::kNccl:
      return parts;
    case DeviceSums::kExchange:
      return exchange;
    case DeviceSums::kAuto:
    case DeviceSums::kHierarchical:
      return num_members <= gpu::kMaxPeers ? std::max(exchange, parts) : exchange + parts;
  }
  return 0;
}

std::unique_ptr<DeviceGroup> make_device_group(gpu::Device& device,
                                               const gpu::Backend& backend,
                                               TargetGroup& over_host,
                                               const DeviceSumsOptions& options) {
  if (over_host.size() == 1) return make_solo_device_group(backend.ops);
  Chooser chooser(device, backend, over_host, options);
  std::unique_ptr<DeviceGroup> group;
  switch (options.wanted) {
    case DeviceSums::kAuto:
      return chooser.choose();
    case DeviceSums::kExchange:
      group = chooser.exchange();
      break;
    case DeviceSums::kHierarchical:
      group = chooser.hierarchical();
      break;
    case DeviceSums::kNccl:
      group = chooser.nccl();
      break;
    case DeviceSums::kStaged:
      group = chooser.staged();
      break;
  }
  if (over_host.rank() == 0) log_info("sums over the ranks' GPUs: {}, as asked", group->name());
  return group;
}

}  // namespace outrider
