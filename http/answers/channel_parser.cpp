// See channel_parser.h.
#include "http/answers/channel_parser.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kRecipient = "to=functions.";

// The text up to a blank or a mark.
std::string first_word(std::string_view text) {
  return std::string(text.substr(0, std::min(text.find_first_of(" <"), text.size())));
}

}  // namespace

bool ChannelParser::read_header() {
  // A model that writes no channels has no headers.
  if (!rest_.empty() && rest_.front() != '<' && num_calls() == 0) {
    in_header_ = false;
    return true;
  }
  const size_t end = rest_.find(kMessage);
  if (end == std::string::npos) return false;
  const std::string_view header = std::string_view(rest_).substr(0, end);
  const size_t recipient = header.find(kRecipient);
  body_ = header.find("analysis") != std::string_view::npos ? Body::kReasoning : Body::kContent;
  const std::string name = recipient == std::string_view::npos
                               ? std::string()
                               : first_word(header.substr(recipient + kRecipient.size()));
  if (!name.empty()) {
    body_ = Body::kCall;
    begin_call(name);
  }
  skip(end + kMessage.size());
  in_header_ = false;
  return true;
}

bool ChannelParser::read_body() {
  static const std::vector<std::string_view> kEnds = {
      "<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
  size_t end = std::string::npos;
  for (const std::string_view mark : kEnds) end = std::min(end, rest_.find(mark));
  const bool is_whole = end != std::string::npos;
  if (!is_whole) end = settled_length(kEnds);
  const std::string text = rest_.substr(0, end);
  skip(end);
  if (body_ == Body::kCall) {
    add_arguments(text);
  } else {
    add_text(body_ == Body::kReasoning ? &AnswerPieces::reasoning : &AnswerPieces::content, text);
  }
  if (is_whole || (ended_ && body_ == Body::kReasoning)) drop_space();
  if (!is_whole) return false;
  in_header_ = true;
  return true;
}

}  // namespace outrider
