// See device_check.h.
#include "runtime/ranks/startup/device_check.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/ranks/startup/rendezvous.h"

namespace outrider {

void fields_of(auto& wire, Is<DeviceDescriptor> auto& descriptor) {
  wire.fields(descriptor.problem, descriptor.host, descriptor.uuid, descriptor.name);
  wire.fields(descriptor.ordinal, descriptor.compute_capability, descriptor.total_bytes);
  wire.fields(descriptor.num_visible, descriptor.is_given);
}

namespace {

using Descriptors = std::map<int, DeviceDescriptor>;

std::string kind_of(const DeviceDescriptor& descriptor) {
  return fmt::format("a {} (compute capability {}.{}, {:.1f} GB)",
                     descriptor.name,
                     descriptor.compute_capability / 10,
                     descriptor.compute_capability % 10,
                     static_cast<double>(descriptor.total_bytes) / 1e9);
}

// Other code runs on another major, so the ranks' sums would not be of the same bits as elsewhere.
std::string device_error(const RankLayout& layout, const Descriptors& descriptors) {
  for (const auto& [rank, descriptor] : descriptors) {
    if (!descriptor.problem.empty())
      return named_problem(layout, rank, descriptor.host, descriptor.problem);
  }
  const DeviceDescriptor& first = descriptors.at(0);
  for (const auto& [rank, descriptor] : descriptors) {
    if (rank >= layout.num_targets || descriptor.uuid.empty() || first.uuid.empty()) continue;
    if (descriptor.compute_capability / 10 == first.compute_capability / 10) continue;
    return named_problem(layout,
                         rank,
                         descriptor.host,
                         fmt::format("its GPU is {} where rank 0's is {}: the target needs GPUs of "
                                     "one generation",
                                     kind_of(descriptor),
                                     kind_of(first)));
  }
  return "";
}

void warn_of_other_kinds(const RankLayout& layout, const Descriptors& descriptors) {
  const DeviceDescriptor& first = descriptors.at(0);
  for (const auto& [rank, descriptor] : descriptors) {
    if (rank >= layout.num_targets || descriptor.uuid.empty() || first.uuid.empty()) continue;
    if (kind_of(descriptor) == kind_of(first)) continue;
    log_warning(
        "rank {} has {} where rank 0 has {}: the smallest decides how much KV memory all have, the "
        "slowest how fast a round is",
        rank,
        kind_of(descriptor),
        kind_of(first));
    return;
  }
}

std::string list_of(const std::vector<int>& ranks, const RankLayout& layout) {
  std::string text;
  for (const int rank : ranks) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", rank, layout.name(rank));
  }
  return text;
}

// One draft beside one target on a machine's only GPU is how small jobs are meant to be, and
// cuda_device asks for sharing: no warning.
void warn_of_shared_gpus(const RankLayout& layout, const Descriptors& descriptors) {
  std::map<std::string, std::vector<int>> ranks_by_gpu;
  for (const auto& [rank, descriptor] : descriptors) {
    if (!descriptor.uuid.empty()) ranks_by_gpu[descriptor.uuid].push_back(rank);
  }
  for (const auto& [uuid, ranks] : ranks_by_gpu) {
    const DeviceDescriptor& descriptor = descriptors.at(ranks[0]);
    const bool several_targets = ranks.size() > 1 && ranks[1] < layout.num_targets;
    const bool was_avoidable = ranks.size() > 1 && descriptor.num_visible > 1;
    if (descriptor.is_given || !(several_targets || was_avoidable)) continue;
    log_warning(
        "ranks {} share GPU {} of {}, where they see {} GPU(s): they take turns and share its "
        "memory",
        list_of(ranks, layout),
        descriptor.ordinal,
        descriptor.host,
        descriptor.num_visible);
  }
}

}  // namespace

DeviceDescriptor descriptor_of(const DeviceAssignment& assignment) {
  if (!assignment.device) return {};
  const gpu::DeviceInfo info = assignment.device->info();
  return {.uuid = info.uuid,
          .name = info.name,
          .ordinal = info.ordinal,
          .compute_capability = info.compute_capability,
          .total_bytes = info.total_bytes,
          .num_visible = assignment.num_visible,
          .is_given = assignment.is_given};
}

Bytes encode_descriptor(const DeviceDescriptor& descriptor) { return wire_bytes(descriptor); }

Bytes check_devices(World& world,
                    const RankLayout& layout,
                    const Bytes& descriptor,
                    double timeout_s) {
  auto own = WireReader(descriptor).get<DeviceDescriptor>();
  own.host = world.host();
  const auto judge = [&](const Reports& reports) {
    const auto descriptors = decoded<DeviceDescriptor>(reports);
    std::string sentence = device_error(layout, descriptors);
    const std::string missing = missing_ranks(layout, reports);
    if (sentence.empty() && !missing.empty()) sentence = "no report from " + missing + " in time";
    if (sentence.empty()) {
      warn_of_other_kinds(layout, descriptors);
      warn_of_shared_gpus(layout, descriptors);
    }
    std::vector<std::string> gpus;
    for (const auto& [rank, one] : descriptors) gpus.push_back(one.uuid);
    return wire_bytes(sentence, layout.num_targets, gpus);
  };
  return rendezvous(world, layout, wire_bytes(own), judge, timeout_s);
}

std::string refusal_in(const Bytes& answer) { return WireReader(answer).get<std::string>(); }

void settle_assignment(const Bytes& answer, DeviceAssignment& assignment) {
  WireReader in(answer);
  const auto sentence = in.get<std::string>();
  if (!sentence.empty()) throw Error(sentence);
  if (!assignment.device) return;
  const auto num_targets = static_cast<size_t>(in.get<int>());
  const auto gpus = in.get<std::vector<std::string>>();
  const std::string mine = assignment.device->info().uuid;
  assignment.num_targets = 0;
  assignment.has_draft = false;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    if (gpus[rank] != mine) continue;
    if (rank < num_targets) {
      ++assignment.num_targets;
    } else {
      assignment.has_draft = true;
    }
  }
}

}  // namespace outrider
