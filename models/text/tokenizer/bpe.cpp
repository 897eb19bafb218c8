// BPE merging as Hugging Face's tokenizers does it, quirks included, since equal ids are the point.
// Called on every encode, any thread.
#include "models/text/tokenizer/bpe.h"

#include <bit>
#include <limits>
#include <queue>
#include <utility>

#include "models/text/tokenizer/decoder.h"
#include "models/text/tokenizer/unicode.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

// One word being merged: a doubly linked list of symbols over positions, and a heap of the pairs
// that can merge, ordered by (rank, position).
class WordMerger {
 public:
  WordMerger(const std::vector<int32_t>& ids, const MergeTable& merges)
      : symbols_(ids.size()), merges_(merges) {
    const auto num_symbols = static_cast<int32_t>(ids.size());
    for (int32_t i = 0; i < num_symbols; ++i) {
      at(i) = {ids[static_cast<size_t>(i)], i - 1, i + 1 < num_symbols ? i + 1 : -1, false};
    }
    std::vector<uint64_t> entries;
    for (int32_t i = 0; i + 1 < num_symbols; ++i) {
      if (const auto* merge = merge_at(i)) entries.push_back(entry_of(*merge, i));
    }
    heap_ = Heap(std::greater<>(), std::move(entries));
  }

  void run(const std::vector<int32_t>& merged_id_of_rank) {
    while (!heap_.empty()) {
      const uint64_t top = heap_.top();
      heap_.pop();
      const auto position = static_cast<int32_t>(top & 0xFFFFFFFFu);
      const auto* merge = at(position).is_gone ? nullptr : merge_at(position);
      // An entry is stale when its pair no longer gives the id it was made for.
      if (merge == nullptr) continue;
      if (merge->merged_id != merged_id_of_rank[static_cast<size_t>(top >> 32)]) continue;
      join(position, merge->merged_id);
    }
  }

  void append_to(std::vector<int32_t>& out) const {
    for (const Symbol& symbol : symbols_) {
      if (!symbol.is_gone) out.push_back(symbol.id);
    }
  }

 private:
  struct Symbol {
    int32_t id = 0;
    int32_t previous = -1;
    int32_t next = -1;
    bool is_gone = false;
  };
  using Heap = std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>>;

  static uint64_t entry_of(const MergeTable::Merge& merge, int32_t position) {
    return (uint64_t{merge.rank} << 32) | static_cast<uint32_t>(position);
  }
  Symbol& at(int32_t position) { return symbols_[static_cast<size_t>(position)]; }

  // The merge of the symbol at `position` with its right neighbour, or null.
  const MergeTable::Merge* merge_at(int32_t position) {
    const Symbol& left = at(position);
    return left.next < 0 ? nullptr : merges_.find(left.id, at(left.next).id);
  }

  // Makes one symbol of the pair at `position` and offers its two new pairs.
  void join(int32_t position, int32_t merged_id) {
    Symbol& left = at(position);
    Symbol& right = at(left.next);
    left.id = merged_id;
    left.next = right.next;
    right.is_gone = true;
    if (left.next >= 0) at(left.next).previous = position;
    for (const int32_t start : {left.previous, position}) {
      const auto* merge = start < 0 ? nullptr : merge_at(start);
      if (merge != nullptr) heap_.push(entry_of(*merge, start));
    }
  }

  std::vector<Symbol> symbols_;
  const MergeTable& merges_;
  Heap heap_;
};

}  // namespace

MergeTable::MergeTable(size_t num_merges) : slots_(std::bit_ceil(num_merges * 2 + 2)) {}

size_t MergeTable::slot_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 24) & mask;
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  slots_[slot_of(key)] = {key, merge};
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.key == kEmpty ? nullptr : &slot.merge;
}

BpeModel::BpeModel(const BpeSpec& spec,
                   bool byte_level,
                   const std::unordered_set<int32_t>& control_ids)
    : merges_(spec.merges.size()),
      control_ids_(control_ids),
      fuse_unk_(spec.fuse_unk),
      byte_level_(byte_level),
      ignore_merges_(spec.ignore_merges) {
  ids_.reserve(spec.vocab.size());
  for (const auto& [piece, id] : spec.vocab) ids_.emplace(piece, id);
  merged_id_of_rank_.reserve(spec.merges.size());
  for (const auto& [left, right] : spec.merges) {
    const int32_t left_id = id_or(ids_, left, -1);
    const int32_t right_id = id_or(ids_, right, -1);
    const int32_t merged_id = id_or(ids_, left + right, -1);
    if (left_id < 0 || right_id < 0 || merged_id < 0) {
      throw Error("merge number " + std::to_string(merged_id_of_rank_.size()) +
                  " uses a piece that is not in the vocabulary");
    }
    const auto rank = static_cast<uint32_t>(merged_id_of_rank_.size());
    merged_id_of_rank_.push_back(merged_id);
    if (!control_ids_.contains(merged_id)) merges_.insert(left_id, right_id, {rank, merged_id});
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = id_or(ids_, byte_level_character(static_cast<unsigned char>(byte)), -1);
  }
  find_byte_tokens(spec.byte_fallback);
  if (spec.unk_token) unk_id_ = id_or(ids_, *spec.unk_token, -1);
}

std::vector<int32_t> BpeModel::initial_symbols(std::string_view word) const {
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  bool is_run = false;  // unknown characters not yet written: fuse_unk makes them one token
  const auto end_run = [&] {
    if (is_run) symbols.push_back(unk_id_);
    is_run = false;
  };
  const auto append_character = [&](std::string_view character) {
    if (const int32_t id = id_or(ids_, character, -1); id >= 0) {
      end_run();
      symbols.push_back(id);
      return;
    }
    // A run of unknown characters goes on behind the bytes, as in Hugging Face.
    if (append_bytes(character, symbols)) return;
    if (unk_id_ < 0) return;  // without an unknown token such characters vanish
    if (!fuse_unk_) end_run();
    is_run = true;
  };
  for (size_t pos = 0; pos < word.size();) {
    if (!byte_level_) {
      const size_t num_bytes = unicode::code_point_at(word, pos).num_bytes;
      append_character(word.substr(pos, num_bytes));
      pos += num_bytes;
      continue;
    }
    const auto byte = static_cast<unsigned char>(word[pos++]);
    if (byte_ids_[byte] >= 0 && !is_run) {
      symbols.push_back(byte_ids_[byte]);
    } else {
      append_character(byte_level_character(byte));
    }
  }
  end_run();
  return symbols;
}

void BpeModel::append_word(std::string_view word, std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    const int32_t id =
        byte_level_ ? id_or(ids_, byte_level_characters(word), -1) : id_or(ids_, word, -1);
    if (id >= 0 && !control_ids_.contains(id)) {
      out.push_back(id);
      return;
    }
  }
  const std::vector<int32_t> symbols = initial_symbols(word);
  if (symbols.size() > size_t{std::numeric_limits<int32_t>::max()}) throw Error("text too long");
  WordMerger merger(symbols, merges_);
  merger.run(merged_id_of_rank_);
  merger.append_to(out);
}

}  // namespace outrider
