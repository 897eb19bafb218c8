// See vocabulary_map.h.
#include "models/text/vocabulary_map.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "models/text/tokenizer/unicode.h"

namespace outrider {
namespace {

// A longer run without partners is cut, so that a text in a script the draft has no tokens for is
// not encoded again and again.
constexpr size_t kLongestRun = 32;

// "<0x41>" and "A" stand for the same byte; the piece is what the model writes.
bool is_byte_form(const Tokenizer& tokenizer, int32_t id) {
  const std::string text = tokenizer.token_text(id);
  return text.size() == 6 && text.starts_with("<0x") && tokenizer.token_bytes(id).size() == 1;
}

std::string bytes_of_all(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string bytes;
  for (int32_t id : ids)
    bytes += tokenizer.is_special(id) ? tokenizer.token_text(id) : tokenizer.token_bytes(id);
  return bytes;
}

// The best id for each text a non-special token stands for.
std::unordered_map<std::string, int32_t> ids_by_bytes(const Tokenizer& tokenizer, int32_t num_ids) {
  std::unordered_map<std::string, int32_t> ids;
  for (int32_t id = 0; id < num_ids; ++id) {
    if (tokenizer.is_special(id)) continue;
    std::string bytes = tokenizer.token_bytes(id);
    if (bytes.empty()) continue;
    const auto [found, is_new] = ids.emplace(std::move(bytes), id);
    if (!is_new && is_byte_form(tokenizer, found->second) && !is_byte_form(tokenizer, id))
      found->second = id;
  }
  return ids;
}

// What stands before every text: the bos of a tokenizer that adds one.
std::vector<int32_t> start_of(const Tokenizer& tokenizer) {
  const std::vector<int32_t> around = tokenizer.encode("");
  if (around.empty() || tokenizer.bos_id() != around.front()) return {};
  return {around.front()};
}

}  // namespace

bool is_same_token(const Tokenizer& a, int32_t a_id, const Tokenizer& b, int32_t b_id) {
  if (a.is_special(a_id) || b.is_special(b_id)) return a.token_text(a_id) == b.token_text(b_id);
  return a.token_bytes(a_id) == b.token_bytes(b_id);
}

VocabularyMap::VocabularyMap(std::shared_ptr<const Tokenizer> target,
                             int32_t num_target_rows,
                             std::shared_ptr<const Tokenizer> draft,
                             int32_t num_draft_rows)
    : target_(std::move(target)),
      draft_(std::move(draft)),
      num_target_rows_(std::min(num_target_rows, target_->vocab_size())),
      num_draft_rows_(std::min(num_draft_rows, draft_->vocab_size())),
      draft_ids_(static_cast<size_t>(std::max(0, num_target_rows_)), -1),
      start_(start_of(*draft_)) {
  if (!start_.empty() && start_.front() >= num_draft_rows_) start_.clear();
  pair_tokens();
  pair_end_tokens();
}

void VocabularyMap::pair_tokens() {
  const auto by_bytes = ids_by_bytes(*draft_, num_draft_rows_);
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const auto found = by_bytes.find(std::string(1, static_cast<char>(byte)));
    byte_ids_[byte] = found == by_bytes.end() ? -1 : found->second;
  }
  // First by equal vocabulary form, so that of several tokens with the same bytes each finds its
  // own twin; then by bytes. Each draft id is proposed as one target id only.
  std::vector<char> is_taken(static_cast<size_t>(std::max(0, num_draft_rows_)));
  for (int32_t id = 0; id < num_target_rows_; ++id) {
    const std::string text = target_->token_text(id);
    const auto twin = text.empty() ? std::nullopt : draft_->token_id(text);
    if (!twin || *twin >= num_draft_rows_ || !is_same_token(*target_, id, *draft_, *twin)) continue;
    draft_ids_[static_cast<size_t>(id)] = *twin;
    is_taken[static_cast<size_t>(*twin)] = 1;
    pairs_.push_back({id, *twin});
  }
  // Bytes that are written as one token by the target's tokenizer come before duplicates of them.
  for (const bool byte_forms : {false, true}) {
    for (int32_t id = 0; id < num_target_rows_; ++id) {
      int32_t& draft_id = draft_ids_[static_cast<size_t>(id)];
      if (draft_id >= 0 || target_->is_special(id) || is_byte_form(*target_, id) != byte_forms)
        continue;
      const auto found = by_bytes.find(target_->token_bytes(id));
      if (found == by_bytes.end()) continue;
      draft_id = found->second;
      if (std::exchange(is_taken[static_cast<size_t>(draft_id)], 1) == 0)
        pairs_.push_back({id, draft_id});
    }
  }
  std::ranges::sort(pairs_, {}, &Pair::target_id);
}

// The end of a text is the same in every vocabulary, whatever its name.
void VocabularyMap::pair_end_tokens() {
  const int32_t target_end = target_->eos_id().value_or(-1);
  const int32_t draft_end = draft_->eos_id().value_or(-1);
  if (target_end < 0 || target_end >= num_target_rows_) return;
  if (draft_end < 0 || draft_end >= num_draft_rows_) return;
  if (draft_id(target_end) >= 0) return;
  std::erase_if(pairs_, [&](const Pair& pair) { return pair.draft_id == draft_end; });
  draft_ids_[static_cast<size_t>(target_end)] = draft_end;
  const auto place = std::ranges::lower_bound(pairs_, target_end, {}, &Pair::target_id);
  pairs_.insert(place, Pair{target_end, draft_end});
}

int32_t VocabularyMap::draft_id(int32_t target_id) const {
  if (target_id < 0 || target_id >= num_target_rows_) return -1;
  return draft_ids_[static_cast<size_t>(target_id)];
}

// Characters as the draft's tokenizer cuts them, parts of characters byte by byte.
void VocabularyMap::append_bytes(std::string_view bytes, std::vector<int32_t>& out) const {
  using Kind = unicode::Utf8Unit::Kind;
  size_t begin = 0;
  size_t pos = 0;
  while (pos < bytes.size()) {
    const unicode::Utf8Unit unit = unicode::utf8_unit_at(bytes, pos);
    if (unit.kind == Kind::kCharacter) {
      pos += unit.length;
      continue;
    }
    append_text(bytes.substr(begin, pos - begin), out);
    for (const char byte : bytes.substr(pos, unit.length)) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
      if (id >= 0) out.push_back(id);
    }
    pos += unit.length;
    begin = pos;
  }
  append_text(bytes.substr(begin), out);
}

// Some tokenizers put a space before every text, which would be wrong in the middle of one. Then
// the text is encoded after a line end that is cut off again, or without its own space.
void VocabularyMap::append_text(std::string_view text, std::vector<int32_t>& out) const {
  if (text.empty()) return;
  constexpr EncodeOptions kPlain{.add_special_tokens = false, .parse_special_tokens = false};
  std::vector<int32_t> ids = draft_->encode(text, kPlain);
  if (bytes_of_all(*draft_, ids) != text) {
    const std::vector<int32_t> mark = draft_->encode("\n", kPlain);
    std::vector<int32_t> marked = draft_->encode("\n" + std::string(text), kPlain);
    if (marked.size() > mark.size() && std::equal(mark.begin(), mark.end(), marked.begin())) {
      ids.assign(marked.begin() + static_cast<ptrdiff_t>(mark.size()), marked.end());
    } else if (text.front() == ' ') {
      ids = draft_->encode(text.substr(1), kPlain);
    }
  }
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(out), [&](int32_t id) {
    return id < num_draft_rows_;
  });
}

void TranslatedTokens::clear() { *this = TranslatedTokens{}; }

void TranslatedTokens::extend(const VocabularyMap& map, std::span<const int32_t> target_ids) {
  if (num_settled_target_ == 0) {
    ids_ = map.start_;
    // A start of text of the target's own is no text, and the draft has its own or none.
    const bool starts = !target_ids.empty() && target_ids[0] == map.target_->bos_id().value_or(-1);
    if (starts && map.start_.empty() && map.draft_id(target_ids[0]) >= 0)
      ids_.push_back(map.draft_id(target_ids[0]));
    num_settled_target_ = starts ? 1 : 0;
    num_settled_ids_ = ids_.size();
  }
  ids_.resize(num_settled_ids_);
  size_t pos = num_settled_target_;
  while (pos < target_ids.size()) {
    const int32_t partner = map.draft_id(target_ids[pos]);
    if (partner >= 0) {
      ids_.push_back(partner);
      num_settled_target_ = ++pos;
      num_settled_ids_ = ids_.size();
      continue;
    }
    size_t end = pos;
    while (end < target_ids.size() && end - pos < kLongestRun &&
           map.draft_id(target_ids[end]) < 0) {
      ++end;
    }
    map.append_bytes(bytes_of_all(*map.target_, target_ids.subspan(pos, end - pos)), ids_);
    if (end < target_ids.size() || end - pos == kLongestRun) {
      num_settled_target_ = end;
      num_settled_ids_ = ids_.size();
    }
    pos = end;
  }
}

}  // namespace outrider
