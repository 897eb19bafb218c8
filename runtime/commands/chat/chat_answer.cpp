// See chat_answer.h.
#include "runtime/commands/chat/chat_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "http/wire/api_error.h"
#include "runtime/base/error.h"
#include "runtime/base/files/json_depth.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

struct OriginRow {
  const char* name;
  const char* color;
  bool ends_round;
};
constexpr OriginRow kOrigins[kNumPieceOrigins] = {{"accepted", "\033[94m", false},
                                                  {"corrected", "\033[33m", true},
                                                  {"bonus", "\033[32m", true},
                                                  {"plain", "\033[39m", true}};

const OriginRow& row_of(PieceOrigin origin) { return kOrigins[static_cast<size_t>(origin)]; }

PieceOrigin origin_of(const Json& name) {
  const auto* found = std::find_if(std::begin(kOrigins), std::end(kOrigins), [&](const auto& row) {
    return name.is_string() && name.get_ref<const std::string&>() == row.name;
  });
  return found == std::end(kOrigins) ? PieceOrigin::kPlain
                                     : static_cast<PieceOrigin>(found - std::begin(kOrigins));
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

// Where the character of this number begins, or the text's end.
size_t byte_of(std::string_view text, size_t character) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (begins_character(text[at]) && character-- == 0) break;
  }
  return at;
}

std::string text_of(const Json& choice) {
  const Json content = choice.value("delta", Json::object()).value("content", Json());
  return content.is_string() ? content.get<std::string>() : "";
}

// Where each token's text begins, in characters of the answer; empty when that does not fit.
std::vector<size_t> offsets_of(const Json& choice, size_t num_tokens, size_t begin, size_t end) {
  std::vector<size_t> offsets;
  for (const Json& offset : choice.value("text_offset", Json::array())) {
    if (!offset.is_number_unsigned()) return {};
    offsets.push_back(offset.get<size_t>());
  }
  const bool fits = offsets.size() == num_tokens && !offsets.empty() && offsets.front() == begin &&
                    offsets.back() <= end && std::is_sorted(offsets.begin(), offsets.end());
  return fits ? offsets : std::vector<size_t>{};
}

}  // namespace

const char* name_of(PieceOrigin origin) { return row_of(origin).name; }
const char* color_of(PieceOrigin origin) { return row_of(origin).color; }

std::vector<AnswerPiece> ChatAnswer::take(double time_s, std::string_view data) {
  if (data == "[DONE]") {
    is_whole_ = true;
    return {};
  }
  if (json_nests_deeper_than(data, kMaxJsonDepth))
    throw Error(fmt::format("the server sent an event that nests deeper than {}", kMaxJsonDepth));
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) throw Error("the server sent an event that is not JSON");
  if (!event.value("error", Json()).is_null()) throw Error(error_message_of(data));
  std::vector<AnswerPiece> pieces;
  try {
    const Json usage = event.value("usage", Json());
    if (usage.is_object()) {
      const Json count = usage.value("completion_tokens", Json(0u));
      num_tokens_ = static_cast<int64_t>(count.get_ref<const Json::number_unsigned_t&>());
    }
    const Json choices = event.value("choices", Json::array());
    if (choices.empty()) return {};
    const Json& choice = choices.at(0);
    const std::string text = text_of(choice);
    const Json origins = choice.value("token_origins", Json::array());
    const size_t end = num_characters_ + num_characters(text);
    const std::vector<size_t> offsets = offsets_of(choice, origins.size(), num_characters_, end);
    for (size_t i = 0; i < origins.size(); ++i) count(time_s, origin_of(origins[i]));
    for (size_t i = 0; i < offsets.size(); ++i) {
      const size_t to = i + 1 < offsets.size() ? offsets[i + 1] : end;
      const size_t first = byte_of(text, offsets[i] - num_characters_);
      const size_t last = byte_of(text, to - num_characters_);
      if (last > first) pieces.push_back({text.substr(first, last - first), origin_of(origins[i])});
    }
    if (offsets.empty() && !text.empty()) {
      pieces.push_back({text, origins.empty() ? PieceOrigin::kPlain : origin_of(origins.back())});
      if (first_s_ < 0) first_s_ = time_s;
      last_s_ = time_s;
    }
    text_ += text;
    num_characters_ = end;
  } catch (const Json::exception&) {
    throw Error("the server sent an event that is none of a chat");
  }
  return pieces;
}

void ChatAnswer::count(double time_s, PieceOrigin origin) {
  if (first_s_ < 0) first_s_ = time_s;
  last_s_ = time_s;
  ++counts_[static_cast<size_t>(origin)];
  if (!in_round_) ++num_rounds_;
  in_round_ = !row_of(origin).ends_round;
}

std::string ChatAnswer::figures() const {
  const int64_t counted = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
  const int64_t num_tokens = counted > 0 ? counted : num_tokens_;
  if (num_tokens == 0) return {};
  std::string line = fmt::format("{} {}", num_tokens, num_tokens == 1 ? "token" : "tokens");
  const double seconds = last_s_ - first_s_;
  if (seconds > 0 && num_tokens > 1)
    line += fmt::format(", {:.1f} tokens/s", static_cast<double>(num_tokens - 1) / seconds);
  if (num_rounds_ > 0) {
    line += fmt::format(", {:.2f} tokens per round",
                        static_cast<double>(counted) / static_cast<double>(num_rounds_));
  }
  const int64_t num_accepted = counts_[static_cast<size_t>(PieceOrigin::kAccepted)];
  const int64_t num_looked_at =
      num_accepted + counts_[static_cast<size_t>(PieceOrigin::kCorrected)];
  if (num_looked_at > 0)
    line += fmt::format(", {}% accepted", (100 * num_accepted + num_looked_at / 2) / num_looked_at);
  return line;
}

std::string without_controls(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool is_c0 = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    // U+0080 to U+009F, which some terminals take for escape sequences too.
    const bool is_c1 = c == 0xc2 && i + 1 < text.size() &&
                       static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                       static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (is_c1) ++i;
    if (!is_c0 && !is_c1) out += text[i];
  }
  return out;
}

}  // namespace outrider
