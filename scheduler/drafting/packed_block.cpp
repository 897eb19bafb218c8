// See packed_block.h.
#include "scheduler/drafting/packed_block.h"

#include <cstring>

namespace outrider {
namespace {

static_assert(sizeof(DraftCandidate) == 8);  // no padding

struct TokenHead {
  int32_t token = 0;
  uint32_t num_candidates = 0;
};
static_assert(sizeof(TokenHead) == PackedTokens::kLeastTokenBytes);

}  // namespace

bool PackedTokens::unpack(std::vector<DraftToken>& tokens) const {
  if (num_tokens > bytes.size() / kLeastTokenBytes) return false;
  std::span<const std::byte> rest = bytes;
  for (size_t i = 0; i < num_tokens; ++i) {
    TokenHead head;
    if (rest.size() < sizeof(head)) return false;
    std::memcpy(&head, rest.data(), sizeof(head));
    rest = rest.subspan(sizeof(head));
    const size_t size = size_t{head.num_candidates} * sizeof(DraftCandidate);
    if (rest.size() < size) return false;
    DraftToken& token = tokens.emplace_back();
    token.token = head.token;
    token.candidates.resize(head.num_candidates);
    if (size > 0) std::memcpy(token.candidates.data(), rest.data(), size);
    rest = rest.subspan(size);
  }
  return rest.empty();
}

}  // namespace outrider
