// What hierarchical groups are held against: the sum as hierarchical_group.h orders it, folded
// here.
#pragma once

#include "tests/comm/device_group_checks.h"

namespace outrider::test {

// Hosts of ranks_per_host neighbours: each folded as `fold` says, then hosts in the tree.
inline ExpectedSum sum_by_hosts(int ranks_per_host) {
  return [ranks_per_host](int num_ranks, unsigned draw, size_t count, Fold fold) {
    std::vector<float> hosts;
    for (int first = 0; first < num_ranks; first += ranks_per_host) {
      std::vector<float> parts;
      for (int r = first; r < first + ranks_per_host; ++r) {
        const std::vector<float> values = values_of(r, draw, count);
        parts.insert(parts.end(), values.begin(), values.end());
      }
      if (fold == Fold::kTree) {
        fold_in_tree(parts.data(), static_cast<size_t>(ranks_per_host), count);
      } else {
        for (size_t at = count; at < parts.size(); ++at) parts[at % count] += parts[at];
      }
      hosts.insert(hosts.end(), parts.begin(), parts.begin() + static_cast<ptrdiff_t>(count));
    }
    fold_in_tree(hosts.data(), static_cast<size_t>(num_ranks / ranks_per_host), count);
    hosts.resize(count);
    return hosts;
  };
}

}  // namespace outrider::test
