// See serve_prompts.h.
#include "runtime/commands/bench/serve/serve_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/rng.h"
#include "runtime/commands/bench/seeded_draws.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kWordStream = 2;
constexpr size_t kMinWords = 16;
constexpr size_t kMaxWords = 4096;
constexpr int32_t kMaxOutputTokens = 16 << 20;
constexpr int kFittingRounds = 6;

constexpr const char* kCommonWords[] = {
    "the",  "of",    "and",   "to",      "in",     "that",    "was",   "he",    "it",     "his",
    "with", "is",    "for",   "as",      "had",    "you",     "not",   "be",    "her",    "on",
    "at",   "by",    "which", "have",    "or",     "from",    "this",  "him",   "but",    "all",
    "she",  "they",  "were",  "my",      "are",    "me",      "one",   "their", "so",     "an",
    "said", "them",  "we",    "who",     "would",  "been",    "will",  "no",    "when",   "there",
    "if",   "more",  "out",   "up",      "into",   "do",      "any",   "your",  "what",   "has",
    "man",  "could", "other", "than",    "our",    "some",    "very",  "time",  "upon",   "about",
    "may",  "its",   "only",  "now",     "like",   "little",  "then",  "can",   "should", "made",
    "did",  "us",    "such",  "great",   "before", "must",    "two",   "these", "see",    "know",
    "over", "much",  "down",  "after",   "first",  "good",    "men",   "own",   "never",  "most",
    "old",  "day",   "where", "those",   "came",   "himself", "way",   "work",  "life",   "without",
    "go",   "make",  "well",  "through", "being",  "long",    "say",   "might", "how",    "am",
    "too",  "even",  "again", "many",    "back",   "here",    "think", "every"};

bool is_word(std::string_view text) {
  return text.size() >= 3 && text.front() == ' ' &&
         std::all_of(text.begin() + 1, text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

// Ids of words that stay themselves between other words.
std::vector<int32_t> word_ids(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size() && ids.size() < kMaxWords; ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string word = tokenizer.token_bytes(id);
    if (!is_word(word)) continue;
    const std::vector<int32_t> twice = tokenizer.encode(
        "a" + word + word, {.add_special_tokens = false, .parse_special_tokens = false});
    if (twice.size() >= 2 && twice.back() == id && twice[twice.size() - 2] == id) ids.push_back(id);
  }
  return ids;
}

int32_t output_len_of(const Json& line, const std::string& place) {
  for (const char* name : {"output_tokens", "max_tokens"}) {
    const auto found = line.find(name);
    if (found == line.end() || found->is_null()) continue;
    if (!found->is_number_unsigned() || found->get<uint64_t>() < 1 ||
        found->get<uint64_t>() > kMaxOutputTokens) {
      throw Error(fmt::format("{}: {} must be 1 to {}", place, name, kMaxOutputTokens));
    }
    return found->get<int32_t>();
  }
  return 0;
}

FilePrompt prompt_of_json(std::string_view line, const std::string& place) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) throw Error(fmt::format("{}: not a JSON object", place));
  FilePrompt prompt;
  prompt.output_len = output_len_of(json, place);
  if (const auto text = json.find("prompt"); text != json.end() && text->is_string()) {
    prompt.text = text->get<std::string>();
  } else if (const auto turns = json.find("turns"); turns != json.end() && turns->is_array() &&
                                                    !turns->empty() && turns->front().is_string()) {
    prompt.text = turns->front().get<std::string>();
  } else {
    throw Error(fmt::format("{} has neither \"prompt\" nor \"turns\"", place));
  }
  if (prompt.text.empty()) throw Error(fmt::format("{}: the prompt is empty", place));
  return prompt;
}

}  // namespace

PromptMaker::PromptMaker(PromptSource source) : source_(std::move(source)) {
  if (source_.tokenizer) {
    ids_ = word_ids(*source_.tokenizer);
    for (const int32_t id : ids_) words_.push_back(source_.tokenizer->token_bytes(id));
    if (ids_.size() < kMinWords)
      throw Error(
          fmt::format("the tokenizer has only {} whole words; leave --tokenizer out", ids_.size()));
    return;
  }
  for (const char* word : kCommonWords) words_.push_back(std::string(" ") + word);
  if (source_.form == PromptForm::kText) return;
  // Special and byte tokens usually come first.
  const int32_t first = std::min(300, source_.vocab_size / 2);
  const int32_t last = std::min<int32_t>(source_.vocab_size, first + (1 << 20));
  for (int32_t id = first; id < last; ++id) ids_.push_back(id);
  if (ids_.empty()) throw Error("random ids need --tokenizer or --vocab-size");
}

std::vector<uint32_t> PromptMaker::draw(const PromptPiece& piece) const {
  const size_t num_choices = source_.form == PromptForm::kIds ? ids_.size() : words_.size();
  SeededDraws draws(piece.key, kWordStream);
  std::vector<uint32_t> drawn(static_cast<size_t>(piece.num_tokens));
  for (uint32_t& choice : drawn) choice = draws.below(static_cast<uint32_t>(num_choices));
  return drawn;
}

ServePrompt PromptMaker::make(const std::vector<PromptPiece>& pieces) const {
  int32_t num_tokens = 0;
  for (const PromptPiece& piece : pieces) num_tokens += piece.num_tokens;
  if (source_.form == PromptForm::kText) return make_text(pieces, num_tokens);
  ServePrompt prompt;
  prompt.num_tokens = num_tokens;
  for (const PromptPiece& piece : pieces) {
    for (const uint32_t choice : draw(piece)) prompt.ids.push_back(ids_[choice]);
  }
  return prompt;
}

ServePrompt PromptMaker::make_text(const std::vector<PromptPiece>& pieces,
                                   int32_t num_tokens) const {
  std::string begin;
  for (size_t i = 0; i + 1 < pieces.size(); ++i) {
    for (const uint32_t choice : draw(pieces[i])) begin += words_[choice];
  }
  PromptPiece last = pieces.empty() ? PromptPiece{} : pieces.back();
  ServePrompt prompt;
  // Special tokens, and words that the tokenizer joins after all, change the count a little. The
  // space before the first word stays: without it the word may be several tokens.
  for (int round = 0; round < kFittingRounds; ++round) {
    prompt.text = begin;
    for (const uint32_t choice : draw(last)) prompt.text += words_[choice];
    prompt.num_tokens = num_tokens;
    if (!source_.tokenizer) {
      if (!prompt.text.empty()) prompt.text.erase(0, 1);
      return prompt;
    }
    prompt.num_tokens = static_cast<int32_t>(source_.tokenizer->encode(prompt.text).size());
    const int32_t wanted = last.num_tokens + num_tokens - prompt.num_tokens;
    if (prompt.num_tokens == num_tokens || wanted < 0 || (wanted == 0 && begin.empty())) break;
    last.num_tokens = wanted;
  }
  return prompt;
}

std::vector<FilePrompt> parse_prompt_lines(std::string_view text, const std::string& origin) {
  std::vector<FilePrompt> prompts;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    if (line.front() == '{') {
      prompts.push_back(prompt_of_json(line, fmt::format("{} line {}", origin, number)));
    } else {
      prompts.push_back({std::string(line), 0});
    }
  }
  if (prompts.empty()) throw Error(fmt::format("{} has no prompts", origin));
  return prompts;
}

std::vector<PromptPiece> trace_pieces(const TraceRow& scaled_row,
                                      double length_scale,
                                      uint64_t salt,
                                      int32_t row) {
  const auto block_len =
      static_cast<int32_t>(std::max(1.0, std::round(kTraceBlockTokens * length_scale)));
  std::vector<PromptPiece> pieces;
  int32_t left = scaled_row.input_len;
  for (const int64_t id : scaled_row.hash_ids) {
    if (left == 0) break;
    const int32_t num_tokens = std::min(left, block_len);
    pieces.push_back({mix_seed(salt, static_cast<uint64_t>(id)), num_tokens});
    left -= num_tokens;
  }
  // The row's own key must meet no hash id's.
  if (left > 0) pieces.push_back({mix_seed(mix_seed(~salt, 0), static_cast<uint64_t>(row)), left});
  return pieces;
}

}  // namespace outrider
