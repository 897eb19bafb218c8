// The device group of GPUs on several hosts that have several each: the exchange among the GPUs of
// a host, NCCL between hosts. A sum has three steps at most:
//   1. in each host its ranks' parts are summed (the exchange: one launch, everyone has the sum);
//   2. each rank sums with those that have its place on the other hosts (a gather and a fold in the
//   tree over hosts: the
//      same bits whichever place it is, and one hop);
//   3. large sums only: in step 2 each rank took a share, and now the ranks of a host give theirs
//   to each other.
// Small sums go whole in step 2: a few KB more per network card cost less than another launch and
// hop.
//
// Order of a sum, whatever its size: within a host in rank order or in the tree, as `fold` says;
// then hosts in the tree. So Fold::kTree has the bits of a flat group when the ranks per host are a
// power of two. Fold::kRankOrder has not those of a flat group (but for two hosts of one rank),
// since hosts are summed first; the same bits on all ranks it has.
#pragma once

#include <memory>

#include "runtime/comm/device/exchange_group.h"
#include "runtime/comm/device/nccl_group.h"

namespace outrider {

// A rank's place. Ranks [host * ranks_per_host, (host + 1) * ranks_per_host) are on one host.
struct HostGrid {
  int num_hosts = 1;
  int ranks_per_host = 1;
  int host = 0;
  int place = 0;  // on the host
};

struct HierarchicalOptions {
  ExchangeOptions within;  // first_rank is not looked at; its limit is cut to 3/4 of between's, so
                           // that the rank that did not come is named by those of its host before
                           // others give up waiting for them
  NcclOptions between;
  bool between_through_host = false;  // staged in place of NCCL: not recorded, and slow
  // Sums of so many bytes times (hosts - 1) and more go between hosts in shares. Computed, not
  // measured: what a network card of 50 GB/s carries in the 5 us that another exchange takes.
  size_t share_bytes = 256 << 10;
  // Which host this rank counts as on; -1: the one it is on.
  int host = -1;
};

// Who is where. All members call it. Throws the same Error on all of them when ranks of a host are
// not neighbours, or hosts have different numbers of them. `host` as in HierarchicalOptions.
HostGrid find_host_grid(TargetGroup& over_host, int host = -1);

// All members of over_host call it. Throws the same Error on every member when one of them cannot
// take part, ranks do not fit (find_host_grid), all are on one host, or each on its own: then the
// exchange or NCCL alone are what is wanted. `device` and `over_host` must outlive the group.
//
// When a rank dies, ranks that neither share its host nor its place may end the step under way with
// undefined sums and without an Error, which then comes in the next: whoever uses the sums must
// meet all ranks before they count, as sampling does.
std::unique_ptr<DeviceGroup> make_hierarchical_group(gpu::Device& device,
                                                     const gpu::Backend& backend,
                                                     TargetGroup& over_host,
                                                     const HierarchicalOptions& options);

// The same from its two groups: this rank's host's, and that of the ranks with its place.
// `over_host`, if given, is kept as long as `between`.
std::unique_ptr<DeviceGroup> join_device_groups(const gpu::OpTable& ops,
                                                const HostGrid& grid,
                                                std::unique_ptr<DeviceGroup> within,
                                                std::unique_ptr<DeviceGroup> between,
                                                size_t share_bytes,
                                                std::unique_ptr<TargetGroup> over_host = nullptr);

}  // namespace outrider
