// Building and walking the flat trie. Built at load; walked by any thread.
#include "models/text/tokenizer/prefix_trie.h"

#include <algorithm>

namespace outrider {

// Breadth first over the sorted strings: a node is a run of strings with the same first `depth`
// bytes, and its children are the runs within.
PrefixTrie::PrefixTrie(std::vector<std::pair<std::string_view, int32_t>> entries) : nodes_(1) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.first < b.first;
  });
  struct Run {
    size_t begin = 0, end = 0, depth = 0;
  };
  std::vector<Run> runs{{0, entries.size(), 0}};
  for (size_t node = 0; node < runs.size(); ++node) {
    auto [begin, end, depth] = runs[node];
    for (; begin < end && entries[begin].first.size() == depth; ++begin) {
      if (depth > 0) nodes_[node].value = entries[begin].second;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = entries[begin].first[depth];
      size_t stop = begin;
      while (stop < end && entries[stop].first[depth] == byte) ++stop;
      runs.push_back({begin, stop, depth + 1});
      nodes_.push_back({0, 0, static_cast<unsigned char>(byte), -1});
      ++nodes_[node].num_children;
      begin = stop;
    }
  }
}

uint32_t PrefixTrie::child_of(uint32_t node, unsigned char byte) const {
  const auto first = nodes_.begin() + nodes_[node].first_child;
  const auto last = first + nodes_[node].num_children;
  const auto found = std::lower_bound(
      first, last, byte, [](const Node& child, unsigned char b) { return child.byte < b; });
  return found == last || found->byte != byte ? 0 : static_cast<uint32_t>(found - nodes_.begin());
}

}  // namespace outrider
