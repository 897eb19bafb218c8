// The Unigram model of SentencePiece: the cut of a word into pieces whose log-probabilities have
// the largest sum, by Viterbi's algorithm (Kudo 2018, 1804.10959), linear in the word for pieces of
// bounded length. Immutable but for the cache of its base; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "models/text/tokenizer/prefix_trie.h"
#include "models/text/tokenizer/spec.h"
#include "models/text/tokenizer/word_model.h"

namespace outrider {

class UnigramModel : public WordModel {
 public:
  // `control_ids`: tokens that only the added-token matcher may produce; their pieces are left out.
  UnigramModel(const UnigramSpec& spec, const std::unordered_set<int32_t>& control_ids);

 private:
  struct Step;
  void append_word(std::string_view word, std::vector<int32_t>& out) const override;
  std::vector<Step> best_steps(std::string_view word) const;
  void append_unknown(std::string_view run, std::vector<int32_t>& out) const;

  PrefixTrie trie_;
  std::vector<double> scores_;  // by id
  double unknown_score_ = 0;
  std::optional<int32_t> unk_id_;
  std::unordered_set<int32_t> control_ids_;
};

}  // namespace outrider
