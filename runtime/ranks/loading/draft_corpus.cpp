// See draft_corpus.h.
#include "runtime/ranks/loading/draft_corpus.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr size_t kMaxCorpusBytes = size_t{256} << 20;
// Pieces end with a line, so the tokens of a piece are all but the same as those of the whole.
constexpr size_t kPieceBytes = size_t{64} << 10;

size_t end_of_piece(const std::string& text, size_t begin) {
  if (text.size() - begin <= kPieceBytes) return text.size();
  const size_t newline = text.rfind('\n', begin + kPieceBytes - 1);
  return newline == std::string::npos || newline < begin ? begin + kPieceBytes : newline + 1;
}

}  // namespace

std::shared_ptr<const BigramModel> learn_draft_corpus(const SpeculativeConfig& config,
                                                      const Tokenizer& tokenizer,
                                                      int32_t vocab_size) {
  if (config.draft_corpus.empty()) return nullptr;
  if (config.method != "unigram" && config.method != "bigram") {
    throw Error(fmt::format(
        "speculative_config.draft_corpus is for the methods unigram and bigram, not for {}",
        config.method));
  }
  const std::string text = read_text_file(config.draft_corpus, kMaxCorpusBytes);
  auto model = std::make_shared<BigramModel>(
      config.method == "bigram" ? CountingOrder::kBigram : CountingOrder::kUnigram, vocab_size);
  std::vector<int32_t> tokens;  // of one piece, after the last token of the piece before
  size_t num_tokens = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = end_of_piece(text, begin);
    if (!tokens.empty()) tokens.erase(tokens.begin(), tokens.end() - 1);
    const size_t num_known = tokens.size();
    const auto piece =
        tokenizer.encode(std::string_view(text).substr(begin, end - begin),
                         {.add_special_tokens = false, .parse_special_tokens = false});
    tokens.insert(tokens.end(), piece.begin(), piece.end());
    model->learn(tokens, num_known);
    num_tokens += piece.size();
    begin = end;
  }
  if (num_tokens == 0) throw Error(fmt::format("{} holds no text to learn", config.draft_corpus));
  log_info(
      "the {} draft has learned {} tokens of {}", config.method, num_tokens, config.draft_corpus);
  return model;
}

}  // namespace outrider
