// See hierarchical_group.h.
#include "runtime/comm/device/hierarchical_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/comm/group/agreed_setup.h"
#include "runtime/comm/group/subgroup.h"
#include "runtime/comm/host_id.h"

namespace outrider {
namespace {

class HierarchicalGroup final : public DeviceGroup {
 public:
  HierarchicalGroup(const gpu::OpTable& ops,
                    const HostGrid& grid,
                    std::unique_ptr<TargetGroup> over_host,
                    std::unique_ptr<DeviceGroup> within,
                    std::unique_ptr<DeviceGroup> between,
                    size_t share_bytes)
      : DeviceGroup(ops),
        grid_(grid),
        over_host_(std::move(over_host)),
        within_(std::move(within)),
        between_(std::move(between)),
        share_bytes_(share_bytes) {
    OUTRIDER_CHECK(within_->rank() == grid.place && within_->size() == grid.ranks_per_host);
    OUTRIDER_CHECK(between_->rank() == grid.host && between_->size() == grid.num_hosts);
  }
  int rank() const override { return grid_.host * grid_.ranks_per_host + grid_.place; }
  int size() const override { return grid_.num_hosts * grid_.ranks_per_host; }
  std::string name() const override {
    return fmt::format("{} x {}: {} within a host, {} between",
                       grid_.num_hosts,
                       grid_.ranks_per_host,
                       within_->name(),
                       between_->name());
  }
  size_t num_bytes() const override { return within_->num_bytes() + between_->num_bytes(); }
  bool is_capturable() const override {
    return within_->is_capturable() && between_->is_capturable();
  }

  void all_reduce_sum(gpu::Stream& stream, float* values, size_t count, Fold fold) override {
    if (!goes_in_shares(count)) return sum_whole(stream, values, count, fold);
    sum_share(stream, values, count, fold);
    within_->all_reduce_sum(stream, values, count, Fold::kRankOrder);
  }

  void sum_and_norm(gpu::Stream& stream, const SumAndNorm& args) override {
    const auto count =
        static_cast<size_t>(args.norm.max_rows) * static_cast<size_t>(args.norm.out.n);
    if (!goes_in_shares(count)) return DeviceGroup::sum_and_norm(stream, args);
    sum_share(stream, args.part, count, args.fold);
    within_->sum_and_norm(stream, args);
  }

  void wait(gpu::Stream& stream) override {
    try {
      between_->wait(stream);  // first: it has a watch that ends what is under way
    } catch (const Error&) {
      within_->wait(stream);  // knows the name, if the rank that is missing was to be here
      throw;
    }
    within_->wait(stream);
  }

 private:
  // Shares must be equal, and of whole 16 bytes.
  bool goes_in_shares(size_t count) const {
    return count * sizeof(float) * static_cast<size_t>(grid_.num_hosts - 1) >= share_bytes_ &&
           count % (size_t{4} * static_cast<size_t>(grid_.ranks_per_host)) == 0;
  }

  void sum_whole(gpu::Stream& stream, float* values, size_t count, Fold fold) {
    within_->all_reduce_sum(stream, values, count, fold);
    sum_between(stream, values, count);
  }

  // Leaves this rank's share of the sum in its place and zeros in the others', whose sum over the
  // host is then a copy.
  void sum_share(gpu::Stream& stream, float* values, size_t count, Fold fold) {
    within_->all_reduce_sum(stream, values, count, fold);
    const size_t share = count / static_cast<size_t>(grid_.ranks_per_host);
    const size_t begin = share * static_cast<size_t>(grid_.place);
    const size_t end = begin + share;
    sum_between(stream, values + begin, share);
    if (begin > 0) stream.fill(values, 0, begin * sizeof(float));
    if (end < count) stream.fill(values + end, 0, (count - end) * sizeof(float));
  }

  void sum_between(gpu::Stream& stream, float* values, size_t count) {
    // What goes through the host is looked at first: undefined sums must not reach others without
    // need.
    if (!between_->is_capturable()) within_->wait(stream);
    between_->all_reduce_sum(stream, values, count, Fold::kTree);
  }

  const HostGrid grid_;
  const std::unique_ptr<TargetGroup> over_host_;
  const std::unique_ptr<DeviceGroup> within_;
  const std::unique_ptr<DeviceGroup> between_;
  const size_t share_bytes_;
};

void check_several(const HostGrid& grid) {
  if (grid.num_hosts == 1) {
    throw Error("the target's ranks are on one host: there are no others to join by NCCL");
  }
  if (grid.ranks_per_host == 1) {
    throw Error(
        "every host has one of the target's ranks: there is nothing to exchange within a host");
  }
}

}  // namespace

HostGrid find_host_grid(TargetGroup& over_host, int host) {
  struct Whereabouts {
    HostId id{};
    int64_t host = 0;
    bool operator==(const Whereabouts&) const = default;
  };
  const auto all = gather_values(over_host, Whereabouts{this_host(), host});
  const auto num_ranks = static_cast<int>(all.size());
  const auto at = [&](int r) -> const Whereabouts& { return all[static_cast<size_t>(r)]; };
  HostGrid grid = {.ranks_per_host = static_cast<int>(std::count(all.begin(), all.end(), all[0]))};
  for (int r = 0; r < num_ranks; ++r) {
    const Whereabouts& mine = at(r);
    if (mine == at(r - r % grid.ranks_per_host) &&
        std::count(all.begin(), all.end(), mine) == grid.ranks_per_host) {
      continue;
    }
    std::string hosts;
    for (const Whereabouts& one : all) {
      hosts += fmt::format(" {}", std::find(all.begin(), all.end(), one) - all.begin());
    }
    throw Error(
        fmt::format("sums cannot go by hosts: every host must have equally many of the target's "
                    "ranks, next to each other; by the "
                    "first rank of their host they are{}",
                    hosts));
  }
  grid.num_hosts = num_ranks / grid.ranks_per_host;
  grid.host = over_host.rank() / grid.ranks_per_host;
  grid.place = over_host.rank() % grid.ranks_per_host;
  return grid;
}

std::unique_ptr<DeviceGroup> join_device_groups(const gpu::OpTable& ops,
                                                const HostGrid& grid,
                                                std::unique_ptr<DeviceGroup> within,
                                                std::unique_ptr<DeviceGroup> between,
                                                size_t share_bytes,
                                                std::unique_ptr<TargetGroup> over_host) {
  return std::make_unique<HierarchicalGroup>(
      ops, grid, std::move(over_host), std::move(within), std::move(between), share_bytes);
}

std::unique_ptr<DeviceGroup> make_hierarchical_group(gpu::Device& device,
                                                     const gpu::Backend& backend,
                                                     TargetGroup& over_host,
                                                     const HierarchicalOptions& options) {
  const HostGrid grid = find_host_grid(over_host, options.host);
  check_several(grid);
  const int first_here = grid.host * grid.ranks_per_host;
  Subgroup here(over_host, first_here, 1, grid.ranks_per_host);
  auto others =
      std::make_unique<Subgroup>(over_host, grid.place, grid.ranks_per_host, grid.num_hosts);

  ExchangeOptions exchange = options.within;
  exchange.first_rank = first_here;
  exchange.limit_s = std::min(exchange.limit_s, 0.75 * options.between.limit_s);
  std::unique_ptr<DeviceGroup> within;
  std::unique_ptr<DeviceGroup> between;
  here.set_up([&] { within = make_exchange_group(device, backend, here, exchange); });
  others->set_up([&] {
    between = options.between_through_host
                  ? make_staged_device_group(device, backend.ops, *others, options.within.max_count)
                  : make_nccl_group(device, backend, *others, options.between);
  });
  return join_device_groups(backend.ops,
                            grid,
                            std::move(within),
                            std::move(between),
                            options.share_bytes,
                            std::move(others));
}

}  // namespace outrider
