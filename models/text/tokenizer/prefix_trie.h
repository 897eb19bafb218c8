// A set of strings with values, asked for all that begin at one place of a text. Built at load in
// one flat array, since a vocabulary has a million nodes; immutable, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {

class PrefixTrie {
 public:
  // The strings need not live on; of two equal ones the last stays, empty ones are left out.
  explicit PrefixTrie(std::vector<std::pair<std::string_view, int32_t>> entries);

  // Calls visit(end, value) for each string that is text[pos, end), the shortest first.
  template <typename Visit>
  void for_each_prefix(std::string_view text, size_t pos, const Visit& visit) const {
    uint32_t node = 0;
    for (size_t i = pos; i < text.size(); ++i) {
      node = child_of(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].value >= 0) visit(i + 1, nodes_[node].value);
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;  // children follow each other, ascending by byte
    uint16_t num_children = 0;
    unsigned char byte = 0;
    int32_t value = -1;
  };
  uint32_t child_of(uint32_t node, unsigned char byte) const;  // 0: there is none

  std::vector<Node> nodes_;
};

}  // namespace outrider
