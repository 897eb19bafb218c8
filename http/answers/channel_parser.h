// Answers in channels (gpt-oss, "harmony"): messages with a header that says where each goes.
#pragma once

#include <utility>

#include "http/answers/answer_parser.h"

namespace outrider {

class ChannelParser : public AnswerParser {
 public:
  explicit ChannelParser(AnswerParserOptions options) : AnswerParser(std::move(options)) {}
  bool in_reasoning() const override { return !in_header_ && body_ == Body::kReasoning; }

 protected:
  bool step() override { return in_header_ ? read_header() : read_body(); }

 private:
  enum class Body : uint8_t { kReasoning, kContent, kCall };

  bool read_header();
  bool read_body();

  bool in_header_ = true;
  Body body_ = Body::kContent;
};

}  // namespace outrider
