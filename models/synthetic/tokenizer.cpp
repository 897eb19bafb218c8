// See tokenizer.h.
#include "models/synthetic/tokenizer.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr std::string_view kConsonants = "bcdfghjklmnprstvwxyz";
constexpr std::string_view kVowels = "aeiou";
constexpr const char* kChatTemplate =
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

struct Pieces {
  std::vector<std::string> texts;                           // by id, up to the wanted number
  std::vector<std::pair<std::string, std::string>> merges;  // by rank, one for each merged piece
  size_t num_wanted = 0;

  bool is_full() const { return texts.size() >= num_wanted; }
  void add(const std::string& text) {
    if (!is_full()) texts.push_back(text);
  }
  void merge(const std::string& left, const std::string& right) {
    if (is_full()) return;
    merges.emplace_back(left, right);
    texts.push_back(left + right);
  }
  // Every one of lefts before every one of rights.
  void merge_all(const std::vector<std::string>& lefts, const std::vector<std::string>& rights) {
    for (const std::string& left : lefts) {
      for (const std::string& right : rights) merge(left, right);
    }
  }
};

std::vector<std::string> joined(const std::vector<std::string>& lefts,
                                const std::vector<std::string>& rights) {
  std::vector<std::string> all;
  for (const std::string& left : lefts) {
    for (const std::string& right : rights) all.push_back(left + right);
  }
  return all;
}

std::vector<std::string> letters(std::string_view text) {
  std::vector<std::string> all;
  for (const char letter : text) all.emplace_back(1, letter);
  return all;
}

constexpr int32_t kFirstByteId = 3;
constexpr int32_t kFirstPieceId = kFirstByteId + 256;

// A syllable joins the space mark before it joins another syllable, so a piece is always reached by
// the one merge listed for it.
Pieces make_pieces(int32_t vocab_size) {
  Pieces pieces;
  pieces.num_wanted = static_cast<size_t>(vocab_size);
  pieces.texts = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) pieces.add(fmt::format("<0x{:02X}>", byte));
  pieces.add(kSpaceMark);
  for (char c = '!'; c <= '~'; ++c) pieces.add(std::string(1, c));
  if (pieces.is_full() && pieces.texts.back() != "~") {
    throw Error(fmt::format("a synthetic tokenizer has at least 354 tokens, not {}", vocab_size));
  }
  const std::vector<std::string> syllables = joined(letters(kConsonants), letters(kVowels));
  const std::vector<std::string> begun = joined({kSpaceMark}, syllables);
  pieces.merge_all(letters(kConsonants), letters(kVowels));
  pieces.merge_all({kSpaceMark}, syllables);
  pieces.merge_all(begun, syllables);
  pieces.merge_all(syllables, syllables);
  pieces.merge_all(joined(begun, syllables), syllables);
  if (!pieces.is_full()) {
    throw Error(fmt::format("a synthetic tokenizer of {} tokens would run out of words; at most {}",
                            vocab_size,
                            pieces.texts.size()));
  }
  return pieces;
}

Json added_token(int32_t id, const std::string& text) {
  return Json{{"id", id},
              {"content", text},
              {"single_word", false},
              {"lstrip", false},
              {"rstrip", false},
              {"normalized", false},
              {"special", true}};
}

Json decoder() {
  const auto replace = [](const char* from, const char* to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  Json steps = Json::array();
  steps.push_back(replace(kSpaceMark, " "));
  steps.push_back(Json{{"type", "ByteFallback"}});
  steps.push_back(Json{{"type", "Fuse"}});
  steps.push_back(Json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return Json{{"type", "Sequence"}, {"decoders", steps}};
}

Json normalizer() {
  Json steps = Json::array();
  steps.push_back(Json{{"type", "Prepend"}, {"prepend", kSpaceMark}});
  steps.push_back(
      Json{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
  return Json{{"type", "Sequence"}, {"normalizers", steps}};
}

// <s> before the text, and before each of a pair.
Json post_processor() {
  const auto special = [](int type_id) {
    return Json{{"SpecialToken", {{"id", "<s>"}, {"type_id", type_id}}}};
  };
  const auto sequence = [](const char* id, int type_id) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type_id}}}};
  };
  Json ids = Json::array({kSyntheticBosId});
  Json tokens = Json::array({"<s>"});
  Json bos = Json{{"id", "<s>"}, {"ids", ids}, {"tokens", tokens}};
  return Json{{"type", "TemplateProcessing"},
              {"single", Json::array({special(0), sequence("A", 0)})},
              {"pair", Json::array({special(0), sequence("A", 0), special(1), sequence("B", 1)})},
              {"special_tokens", Json{{"<s>", bos}}}};
}

std::string tokenizer_json_of(const Pieces& pieces) {
  Json vocab = Json::object();
  Json merges = Json::array();
  for (const auto& [left, right] : pieces.merges) merges.push_back(left + " " + right);
  Json json;
  json["version"] = "1.0";
  json["truncation"] = nullptr;
  json["padding"] = nullptr;
  json["added_tokens"] = Json::array();
  for (int32_t id = 0; id < kFirstByteId; ++id) {
    json["added_tokens"].push_back(added_token(id, pieces.texts[static_cast<size_t>(id)]));
  }
  json["normalizer"] = normalizer();
  json["pre_tokenizer"] = nullptr;
  json["post_processor"] = post_processor();
  json["decoder"] = decoder();
  json["model"] = Json{{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", "<unk>"},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", true},
                       {"byte_fallback", true},
                       {"ignore_merges", false}};
  // An ordered object looks every key up in a list: 150,000 of them are written by hand.
  std::string words;
  for (size_t id = 0; id < pieces.texts.size(); ++id) {
    words += fmt::format("{}{}: {}", id == 0 ? "" : ",\n      ", Json(pieces.texts[id]).dump(), id);
  }
  json["model"]["vocab"] = "@";
  json["model"]["merges"] = std::move(merges);
  std::string text = json.dump(1);
  const std::string place = "\"vocab\": \"@\"";
  text.replace(text.find(place), place.size(), "\"vocab\": {\n      " + words + "\n  }");
  return text + "\n";
}

std::string tokenizer_config_json_of(int32_t max_positions) {
  Json json;
  json["tokenizer_class"] = "LlamaTokenizer";
  json["bos_token"] = "<s>";
  json["eos_token"] = "</s>";
  json["unk_token"] = "<unk>";
  json["add_bos_token"] = true;
  json["add_eos_token"] = false;
  json["clean_up_tokenization_spaces"] = false;
  json["legacy"] = true;
  json["model_max_length"] = max_positions;
  json["chat_template"] = kChatTemplate;
  return json.dump(2) + "\n";
}

// The few fields of SentencePiece's model file (a protocol buffer) that readers look at.
class ProtoWriter {
 public:
  void number(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
  }
  void float32(int field, float value) {
    varint(static_cast<uint64_t>(field) << 3 | 5u);
    char raw[sizeof(value)];
    std::memcpy(raw, &value, sizeof(value));
    bytes_.append(raw, sizeof(raw));
  }
  void text(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2u);
    varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>((value & 127) | 128);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

PieceType type_of(size_t id) {
  if (id == 0) return PieceType::kUnknown;
  if (id < kFirstByteId) return PieceType::kControl;
  return id < kFirstPieceId ? PieceType::kByte : PieceType::kNormal;
}

// Pieces merge in the order of their scores: minus the rank.
std::string tokenizer_model_of(const Pieces& pieces) {
  ProtoWriter model;
  for (size_t id = 0; id < pieces.texts.size(); ++id) {
    const bool is_word = type_of(id) == PieceType::kNormal;
    ProtoWriter piece;
    piece.text(1, pieces.texts[id]);
    piece.float32(2, is_word ? -static_cast<float>(id - kFirstPieceId) : 0.0f);
    piece.number(3, static_cast<uint64_t>(type_of(id)));
    model.text(1, piece.bytes());
  }
  ProtoWriter trainer;
  trainer.number(3, 2);  // model_type: BPE
  trainer.number(4, pieces.texts.size());
  trainer.number(35, 1);  // byte_fallback
  trainer.number(40, 0);
  trainer.number(41, kSyntheticBosId);
  trainer.number(42, kSyntheticEosId);
  trainer.number(43, ~uint64_t{0});  // no padding token: -1
  model.text(2, trainer.bytes());
  ProtoWriter normalizer_spec;
  normalizer_spec.text(1, "identity");
  normalizer_spec.number(3, 1);  // add_dummy_prefix
  normalizer_spec.number(4, 0);  // remove_extra_whitespaces
  normalizer_spec.number(5, 1);  // escape_whitespaces
  model.text(3, normalizer_spec.bytes());
  return model.bytes();
}

}  // namespace

SyntheticTokenizer make_synthetic_tokenizer(int32_t vocab_size, int32_t max_positions) {
  const Pieces pieces = make_pieces(vocab_size);
  return {tokenizer_json_of(pieces),
          tokenizer_config_json_of(max_positions),
          tokenizer_model_of(pieces)};
}

}  // namespace outrider
