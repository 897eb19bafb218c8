// See answer_parser.h.
#include "http/answers/answer_parser.h"

#include <algorithm>
#include <utility>

#include "http/answers/channel_parser.h"
#include "http/answers/marked_parser.h"
#include "runtime/base/numbers/mix.h"

namespace outrider {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// Nine letters and digits: templates of Mistral take no other ids.
std::string call_id(uint64_t seed) {
  constexpr std::string_view kLetters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id;
  for (uint64_t value = mix64(seed); id.size() < 9; value /= kLetters.size())
    id += kLetters[value % kLetters.size()];
  return id;
}

}  // namespace

void AnswerPieces::append(AnswerPieces later) {
  reasoning += later.reasoning;
  content += later.content;
  for (ToolCallPiece& piece : later.calls) {
    if (piece.name.empty() && !calls.empty()) {
      calls.back().arguments += piece.arguments;
    } else {
      calls.push_back(std::move(piece));
    }
  }
}

AnswerPieces AnswerParser::push(std::string_view text) {
  rest_ += text;
  return run();
}

AnswerPieces AnswerParser::finish() {
  ended_ = true;
  AnswerPieces pieces = run();
  pieces.content += std::exchange(space_, {});
  return pieces;
}

AnswerPieces AnswerParser::run() {
  while (step()) {
  }
  return std::exchange(out_, {});
}

void AnswerParser::begin_call(const std::string& name) {
  drop_space();
  const int32_t index = num_calls_++;
  if (index > 0 && !options_.parallel) return;
  const uint64_t seed = options_.id_seed + static_cast<uint64_t>(index);
  out_.calls.push_back({index, call_id(seed), name, {}});
}

void AnswerParser::add_arguments(std::string_view json) {
  const int32_t index = num_calls_ - 1;
  if (json.empty() || (index > 0 && !options_.parallel)) return;
  if (out_.calls.empty() || out_.calls.back().index != index)
    out_.calls.push_back({index, {}, {}, {}});
  out_.calls.back().arguments += json;
}

void AnswerParser::add_text(std::string AnswerPieces::*part, std::string_view text) {
  if (trims_) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (text.empty()) return;
  trims_ = false;
  const size_t end = text.find_last_not_of(kSpace) + 1;  // 0 when there is only space
  if (end > 0) (out_.*part).append(std::exchange(space_, {})).append(text.substr(0, end));
  space_ += text.substr(end);
}

size_t AnswerParser::settled_length(const std::vector<std::string_view>& marks) const {
  if (ended_) return rest_.size();
  size_t held = 0;
  for (const std::string_view mark : marks) {
    if (mark.empty()) continue;
    for (size_t length = std::min(mark.size() - 1, rest_.size()); length > held; --length) {
      if (std::string_view(rest_).ends_with(mark.substr(0, length))) held = length;
    }
  }
  return rest_.size() - held;
}

AnswerParser::Found AnswerParser::take(std::string_view mark) {
  if (mark.empty()) return Found::kNo;
  if (rest_.starts_with(mark)) {
    skip(mark.size());
    return Found::kYes;
  }
  return !ended_ && mark.starts_with(rest_) ? Found::kPerhaps : Found::kNo;
}

std::unique_ptr<AnswerParser> make_answer_parser(AnswerParserOptions options) {
  if (options.formats.is_harmony()) return std::make_unique<ChannelParser>(std::move(options));
  if (options.formats.reasoning == nullptr && options.functions == nullptr) return nullptr;
  return std::make_unique<MarkedParser>(std::move(options));
}

}  // namespace outrider
