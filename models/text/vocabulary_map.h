// The tokens of one model said in the tokens of another with a different tokenizer: which ids stand
// for the same text (the token-level intersection of Timor et al., arXiv 2502.05202, section 4),
// and a growing sequence of target ids as the ids the draft reads. Built once by the draft's loader
// and by check-pair; immutable afterwards. All of it serves the draft's guesses only: no text and
// no decision depends on it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/text/tokenizer.h"

namespace outrider {

// Whether both ids stand for the same: special tokens by name, others by the bytes they decode to
// (so that "Ġthe" of a byte-level vocabulary equals "▁the" of a SentencePiece one).
bool is_same_token(const Tokenizer& a, int32_t a_id, const Tokenizer& b, int32_t b_id);

class VocabularyMap {
 public:
  struct Pair {
    int32_t target_id = 0;
    int32_t draft_id = 0;
  };

  // Rows are the models' vocabulary sizes: an id from there on cannot be embedded and has no
  // partner.
  VocabularyMap(std::shared_ptr<const Tokenizer> target,
                int32_t num_target_rows,
                std::shared_ptr<const Tokenizer> draft,
                int32_t num_draft_rows);

  // The draft's id for a target id, -1 without one. Two target ids may share a draft id.
  int32_t draft_id(int32_t target_id) const;

  // The tokens the draft can propose: ascending target ids, every id of either side at most once.
  std::span<const Pair> pairs() const { return pairs_; }

 private:
  friend class TranslatedTokens;
  void pair_tokens();
  void pair_end_tokens();
  void append_bytes(std::string_view bytes, std::vector<int32_t>& out) const;
  void append_text(std::string_view text, std::vector<int32_t>& out) const;

  std::shared_ptr<const Tokenizer> target_;
  std::shared_ptr<const Tokenizer> draft_;
  int32_t num_target_rows_ = 0;
  int32_t num_draft_rows_ = 0;
  std::vector<int32_t> draft_ids_;  // by target id, -1 = none
  std::vector<Pair> pairs_;
  std::array<int32_t, 256> byte_ids_{};  // the draft's token of a single byte, -1 = none
  std::vector<int32_t> start_;           // what the draft's tokenizer puts before every text
};

// A sequence of target ids as the draft reads it. Ids with a partner are taken one to one; a run of
// others is decoded and encoded by the draft's tokenizer. What stands before the last run without a
// partner never changes when the sequence grows.
class TranslatedTokens {
 public:
  // target_ids is the whole sequence: what the last call had, and more. O(new ids + last run).
  void extend(const VocabularyMap& map, std::span<const int32_t> target_ids);
  void clear();
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  std::vector<int32_t> ids_;
  size_t num_settled_target_ = 0;  // target ids whose translation is final
  size_t num_settled_ids_ = 0;     // and how many of ids_ that is
};

}  // namespace outrider
