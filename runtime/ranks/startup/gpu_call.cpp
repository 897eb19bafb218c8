// See call.h.
#include "runtime/ranks/startup/gpu_call.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/ranks/startup/muster.h"

namespace outrider {
namespace {

using Claims = std::map<int, GpuClaim>;

void put_claim(WireWriter& out, const GpuClaim& claim) {
  out.put_string(claim.problem);
  out.put_string(claim.host);
  out.put_string(claim.uuid);
  out.put_string(claim.name);
  out.put(claim.ordinal);
  out.put(claim.compute_capability);
  out.put(claim.total_bytes);
  out.put(claim.num_visible);
  out.put_bool(claim.is_given);
}

GpuClaim get_claim(WireReader& in) {
  GpuClaim claim;
  claim.problem = in.get_string();
  claim.host = in.get_string();
  claim.uuid = in.get_string();
  claim.name = in.get_string();
  claim.ordinal = in.get<int32_t>();
  claim.compute_capability = in.get<int32_t>();
  claim.total_bytes = in.get<uint64_t>();
  claim.num_visible = in.get<int32_t>();
  claim.is_given = in.get_bool();
  return claim;
}

std::string kind_of(const GpuClaim& claim) {
  return fmt::format("a {} (compute capability {}.{}, {:.1f} GB)",
                     claim.name,
                     claim.compute_capability / 10,
                     claim.compute_capability % 10,
                     static_cast<double>(claim.total_bytes) / 1e9);
}

// Other code runs on another major, so the ranks' sums would not be of the same bits as elsewhere.
std::string verdict(const RankLayout& layout, const Claims& claims) {
  for (const auto& [rank, claim] : claims) {
    if (!claim.problem.empty()) return named_problem(layout, rank, claim.host, claim.problem);
  }
  const GpuClaim& first = claims.at(0);
  for (const auto& [rank, claim] : claims) {
    if (rank >= layout.num_targets || claim.uuid.empty() || first.uuid.empty()) continue;
    if (claim.compute_capability / 10 == first.compute_capability / 10) continue;
    return named_problem(layout,
                         rank,
                         claim.host,
                         fmt::format("its GPU is {} where rank 0's is {}: the target needs GPUs of "
                                     "one generation",
                                     kind_of(claim),
                                     kind_of(first)));
  }
  return "";
}

void warn_of_other_kinds(const RankLayout& layout, const Claims& claims) {
  const GpuClaim& first = claims.at(0);
  for (const auto& [rank, claim] : claims) {
    if (rank >= layout.num_targets || claim.uuid.empty() || first.uuid.empty()) continue;
    if (kind_of(claim) == kind_of(first)) continue;
    log_warning(
        "rank {} has {} where rank 0 has {}: the smallest decides how much KV memory all have, the "
        "slowest how fast a round is",
        rank,
        kind_of(claim),
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
void warn_of_shared_gpus(const RankLayout& layout, const Claims& claims) {
  std::map<std::string, std::vector<int>> ranks_by_gpu;
  for (const auto& [rank, claim] : claims) {
    if (!claim.uuid.empty()) ranks_by_gpu[claim.uuid].push_back(rank);
  }
  for (const auto& [uuid, ranks] : ranks_by_gpu) {
    const GpuClaim& claim = claims.at(ranks[0]);
    const bool several_targets = ranks.size() > 1 && ranks[1] < layout.num_targets;
    const bool was_avoidable = ranks.size() > 1 && claim.num_visible > 1;
    if (claim.is_given || !(several_targets || was_avoidable)) continue;
    log_warning(
        "ranks {} share GPU {} of {}, where they see {} GPU(s): they take turns and share its "
        "memory",
        list_of(ranks, layout),
        claim.ordinal,
        claim.host,
        claim.num_visible);
  }
}

}  // namespace

GpuClaim claim_of(const GpuSeat& seat) {
  if (!seat.device) return {};
  const gpu::DeviceInfo info = seat.device->info();
  return {.uuid = info.uuid,
          .name = info.name,
          .ordinal = info.ordinal,
          .compute_capability = info.compute_capability,
          .total_bytes = info.total_bytes,
          .num_visible = seat.num_visible,
          .is_given = seat.is_given};
}

Bytes encode_claim(const GpuClaim& claim) {
  WireWriter out;
  put_claim(out, claim);
  return out.take();
}

GpuClaim decode_claim(const Bytes& bytes) {
  WireReader in(bytes);
  return get_claim(in);
}

Bytes call_gpus(World& world, const RankLayout& layout, const Bytes& claim, double timeout_s) {
  GpuClaim own = decode_claim(claim);
  own.host = world.host();
  const auto judge = [&](const Reports& reports) {
    Claims claims;
    for (const auto& [rank, bytes] : reports) claims[rank] = decode_claim(bytes);
    std::string sentence = verdict(layout, claims);
    const std::string missing = missing_ranks(layout, reports);
    if (sentence.empty() && !missing.empty()) sentence = "no report from " + missing + " in time";
    if (sentence.empty()) {
      warn_of_other_kinds(layout, claims);
      warn_of_shared_gpus(layout, claims);
    }
    WireWriter out;
    out.put_string(sentence);
    out.put(static_cast<int32_t>(layout.num_targets));
    std::vector<std::string> gpus;
    for (const auto& [rank, one] : claims) gpus.push_back(one.uuid);
    out.put_list(gpus, [](WireWriter& w, const std::string& uuid) { w.put_string(uuid); });
    return out.take();
  };
  return muster(world, layout, encode_claim(own), judge, timeout_s);
}

std::string refusal_in(const Bytes& answer) { return WireReader(answer).get_string(); }

void settle_seat(const Bytes& answer, GpuSeat& seat) {
  WireReader in(answer);
  const std::string sentence = in.get_string();
  if (!sentence.empty()) throw Error(sentence);
  if (!seat.device) return;
  const auto num_targets = static_cast<size_t>(in.get<int32_t>());
  const auto gpus = in.get_list<std::string>([](WireReader& r) { return r.get_string(); });
  const std::string mine = seat.device->info().uuid;
  seat.num_targets = 0;
  seat.has_draft = false;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    if (gpus[rank] != mine) continue;
    if (rank < num_targets) {
      ++seat.num_targets;
    } else {
      seat.has_draft = true;
    }
  }
}

}  // namespace outrider
