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

PackedTokens::PackedTokens(const std::vector<DraftToken>& tokens) : num_tokens_(tokens.size()) {
  size_t num_bytes = 0;
  for (const DraftToken& token : tokens)
    num_bytes += sizeof(TokenHead) + token.candidates.size() * sizeof(DraftCandidate);
  bytes_.resize(num_bytes);
  std::byte* to = bytes_.data();
  for (const DraftToken& token : tokens) {
    const TokenHead head = {token.token, static_cast<uint32_t>(token.candidates.size())};
    std::memcpy(to, &head, sizeof(head));
    to += sizeof(head);
    const size_t size = token.candidates.size() * sizeof(DraftCandidate);
    if (size > 0) std::memcpy(to, token.candidates.data(), size);
    to += size;
  }
}

PackedTokens::PackedTokens(size_t num_tokens, std::span<const std::byte> bytes)
    : num_tokens_(num_tokens), bytes_(bytes.begin(), bytes.end()) {}

void PackedTokens::append(const PackedTokens& more) {
  num_tokens_ += more.num_tokens_;
  bytes_.insert(bytes_.end(), more.bytes_.begin(), more.bytes_.end());
}

std::optional<std::vector<DraftToken>> PackedTokens::unpack() const {
  if (num_tokens_ > bytes_.size() / kLeastTokenBytes) return std::nullopt;
  std::vector<DraftToken> tokens(num_tokens_);
  size_t at = 0;
  for (DraftToken& token : tokens) {
    TokenHead head;
    if (bytes_.size() - at < sizeof(head)) return std::nullopt;
    std::memcpy(&head, bytes_.data() + at, sizeof(head));
    at += sizeof(head);
    const size_t size = size_t{head.num_candidates} * sizeof(DraftCandidate);
    if (bytes_.size() - at < size) return std::nullopt;
    token.token = head.token;
    token.candidates.resize(head.num_candidates);
    if (size > 0) std::memcpy(token.candidates.data(), bytes_.data() + at, size);
    at += size;
  }
  if (at != bytes_.size()) return std::nullopt;
  return tokens;
}

PackedBlock::PackedBlock(const DraftBlock& block)
    : sequence_id(block.sequence_id),
      round(block.round),
      base_len(block.base_len),
      tokens(block.tokens),
      guess(block.guess),
      first(block.first) {}

}  // namespace outrider
