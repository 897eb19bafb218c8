// The tokenizer itself: holds the stages and runs a text through them. See tokenizer.h.
#include "models/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "models/checkpoint/folder_mistakes.h"
#include "models/checkpoint/model_documents.h"
#include "models/gguf/gguf_file.h"
#include "models/text/tokenizer/added_tokens.h"
#include "models/text/tokenizer/bpe.h"
#include "models/text/tokenizer/decoder.h"
#include "models/text/tokenizer/normalizer.h"
#include "models/text/tokenizer/pretokenize.h"
#include "models/text/tokenizer/spec.h"
#include "models/text/tokenizer/unicode.h"
#include "models/text/tokenizer/unigram.h"
#include "models/text/tokenizer/word_model.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"

namespace outrider {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// The text as valid UTF-8 with the user flags beside it.
MarkedText marked_text(std::string_view text, std::span<const TextSpan> literal_spans) {
  std::string flags;
  if (!literal_spans.empty()) {
    flags.assign(text.size(), '\0');
    for (const TextSpan& span : literal_spans) {
      const size_t begin = std::min(span.begin, text.size());
      const size_t end = std::clamp(span.end, begin, text.size());
      std::fill(flags.begin() + static_cast<ptrdiff_t>(begin),
                flags.begin() + static_cast<ptrdiff_t>(end),
                '\1');
    }
  }
  if (unicode::is_valid_utf8(text)) return {std::string(text), std::move(flags)};
  MarkedText out;
  for (size_t pos = 0; pos < text.size();) {
    const unicode::Utf8Unit unit = unicode::utf8_unit_at(text, pos);
    const bool is_good = unit.kind == unicode::Utf8Unit::Kind::kCharacter;
    const auto piece = is_good ? text.substr(pos, unit.length) : unicode::kReplacement;
    out.text += piece;
    if (!flags.empty()) out.literal.append(piece.size(), flags[pos]);
    pos += unit.length;
  }
  return out;
}

MarkedText part_of(const MarkedText& text, size_t begin, size_t end) {
  MarkedText part{text.text.substr(begin, end - begin), {}};
  if (!text.literal.empty()) part.literal = text.literal.substr(begin, end - begin);
  return part;
}

std::unordered_set<int32_t> control_ids_of(const TokenizerSpec& spec) {
  std::unordered_set<int32_t> ids;
  for (const AddedToken& token : spec.added_tokens) {
    if (token.control) ids.insert(token.id);
  }
  return ids;
}

bool is_bpe(const TokenizerSpec& spec) { return std::holds_alternative<BpeSpec>(spec.model); }

std::unique_ptr<const WordModel> make_model(const TokenizerSpec& spec, bool byte_level) {
  const auto control_ids = control_ids_of(spec);
  if (const auto* bpe = std::get_if<BpeSpec>(&spec.model))
    return std::make_unique<BpeModel>(*bpe, byte_level, control_ids);
  return std::make_unique<UnigramModel>(std::get<UnigramSpec>(spec.model), control_ids);
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(const TokenizerSpec& spec);

  void encode_plain(MarkedText text,
                    bool is_text_start,
                    const EncodeOptions& options,
                    std::vector<int32_t>& out) const;

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const WordModel> model;
  TokenDecoder decoder;
  std::optional<AddedTokenMatcher> raw_matcher;         // searched in the text as given
  std::optional<AddedTokenMatcher> normalized_matcher;  // searched after normalization
  std::vector<std::string> texts;                       // vocabulary form by id
  // Added tokens that are searched in normalized text also come back in that form (as in Hugging
  // Face).
  std::unordered_map<int32_t, std::string> normalized_texts;
  std::vector<char> is_special;  // by id
  TokenIds added_ids;
  std::vector<int32_t> prefix_ids, suffix_ids;
  std::optional<int32_t> bos_id, eos_id;
};

Tokenizer::Impl::Impl(const TokenizerSpec& spec)
    : normalizer(spec.normalizer),
      pre_tokenizer(spec.pre_tokenizer, is_bpe(spec)),
      model(make_model(spec, pre_tokenizer.is_byte_level())),
      decoder(spec.decoder),
      prefix_ids(spec.prefix_ids),
      suffix_ids(spec.suffix_ids),
      bos_id(spec.bos_id),
      eos_id(spec.eos_id) {
  int32_t largest = 0;
  spec.for_each_piece([&](const std::string&, int32_t id) { largest = std::max(largest, id); });
  for (const AddedToken& token : spec.added_tokens) largest = std::max(largest, token.id);
  texts.resize(static_cast<size_t>(largest) + 1);
  is_special.resize(texts.size());
  spec.for_each_piece(
      [&](const std::string& piece, int32_t id) { texts[static_cast<size_t>(id)] = piece; });
  std::vector<std::pair<std::string, AddedToken>> raw_tokens, normalized_tokens;
  for (const AddedToken& token : spec.added_tokens) {
    texts[static_cast<size_t>(token.id)] = token.content;
    is_special[static_cast<size_t>(token.id)] = token.special;
    added_ids.emplace(token.content, token.id);
    if (!token.normalized) {
      raw_tokens.emplace_back(token.content, token);
      continue;
    }
    MarkedText content{token.content, {}};
    normalizer.apply(content);
    if (content.text != token.content) normalized_texts.emplace(token.id, content.text);
    normalized_tokens.emplace_back(std::move(content.text), token);
  }
  raw_matcher.emplace(std::move(raw_tokens));
  normalized_matcher.emplace(std::move(normalized_tokens));
  for (const auto* ids : {&prefix_ids, &suffix_ids}) {
    for (const int32_t id : *ids) {
      if (id > largest) throw Error("the post-processor uses the unknown id " + std::to_string(id));
    }
  }
}

void Tokenizer::Impl::encode_plain(MarkedText text,
                                   bool is_text_start,
                                   const EncodeOptions& options,
                                   std::vector<int32_t>& out) const {
  normalizer.apply(text);
  for (const auto& piece : normalized_matcher->split(text, options.parse_special_tokens)) {
    if (piece.id >= 0) {
      out.push_back(piece.id);
      continue;
    }
    const auto plain = std::string_view(text.text).substr(piece.begin, piece.end - piece.begin);
    pre_tokenizer.for_each_word(plain,
                                is_text_start && piece.begin == 0 && !text.lost_start,
                                [&](std::string_view word) { model->encode_word(word, out); });
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::filesystem::path& model_dir) {
  const auto json = read_model_document(model_dir, "tokenizer.json", kMaxFileBytes);
  if (!json) refuse_without_tokenizer(model_dir);
  const auto config = read_model_document(model_dir, "tokenizer_config.json", kMaxFileBytes);
  const auto origin = is_gguf(model_dir) ? model_dir : model_dir / "tokenizer.json";
  return from_json(*json, config.value_or(""), origin.string());
}

std::shared_ptr<const Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json,
                                                      std::string_view config_json,
                                                      const std::string& origin) {
  const TokenizerSpec spec = parse_tokenizer_spec(tokenizer_json, config_json, origin);
  try {
    return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<Impl>(spec)));
  } catch (const Error& error) {
    throw Error(origin + ": " + error.what());
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) throw Error("a text to encode is larger than 1 GiB");
  const MarkedText marked = marked_text(text, options.literal_spans);
  std::vector<int32_t> out;
  if (options.add_special_tokens) out = impl_->prefix_ids;
  for (const auto& piece : impl_->raw_matcher->split(marked, options.parse_special_tokens)) {
    if (piece.id >= 0) {
      out.push_back(piece.id);
    } else {
      impl_->encode_plain(part_of(marked, piece.begin, piece.end), piece.begin == 0, options, out);
    }
  }
  if (options.add_special_tokens) {
    out.insert(out.end(), impl_->suffix_ids.begin(), impl_->suffix_ids.end());
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string out;
  DecodeState state;
  for (const int32_t id : ids) push_token(state, id, skip_special_tokens, out);
  impl_->decoder.flush(state, out);
  return out;
}

void Tokenizer::push_token(DecodeState& state,
                           int32_t id,
                           bool skip_special_tokens,
                           std::string& out) const {
  if (skip_special_tokens && is_special(id)) return;
  std::string_view text = text_of(id);
  const auto normalized = impl_->normalized_texts.find(id);
  if (normalized != impl_->normalized_texts.end()) text = normalized->second;
  if (!text.empty()) impl_->decoder.push(state, text, out);
}

void Tokenizer::flush_tokens(DecodeState& state, std::string& out) const {
  impl_->decoder.flush(state, out);
}

std::string_view Tokenizer::text_of(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->texts[static_cast<size_t>(id)];
}

std::string Tokenizer::token_bytes(int32_t id) const {
  return impl_->decoder.bytes_of(text_of(id));
}

std::string Tokenizer::token_text(int32_t id) const { return std::string(text_of(id)); }

std::optional<int32_t> Tokenizer::token_id(std::string_view token_text) const {
  const int32_t id =
      id_or(impl_->added_ids, token_text, id_or(impl_->model->ids(), token_text, -1));
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->is_special[static_cast<size_t>(id)] != 0;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->texts.size()); }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }

}  // namespace outrider
