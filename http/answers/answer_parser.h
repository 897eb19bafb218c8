// Takes the text of one answer apart as it grows: reasoning, content, tool calls. A text that could
// still become a mark is held back until it is certain. What was given out never changes, so the
// pieces of a stream add up to the whole answer. Owned by the thread that answers the call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "http/answers/answer_format.h"

namespace outrider {

// More of one call; id and name come with its first piece.
struct ToolCallPiece {
  int32_t index = 0;
  std::string id;
  std::string name;
  std::string arguments;
};

struct AnswerPieces {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  void append(AnswerPieces later);
};

// Of each function that was offered: the parameters whose values are texts, in XML left unquoted.
using OfferedFunctions = std::map<std::string, std::set<std::string>>;

struct AnswerParserOptions {
  AnswerFormats formats;
  std::shared_ptr<const OfferedFunctions> functions;  // null: calls are not looked for
  bool begins_in_reasoning = false;                   // the prompt ends with the mark
  bool parallel = true;                               // else calls behind the first are dropped
  uint64_t id_seed = 0;                               // of the calls' ids
};

class AnswerParser {
 public:
  virtual ~AnswerParser() = default;
  AnswerPieces push(std::string_view text);
  // The text is over.
  AnswerPieces finish();
  int32_t num_calls() const { return num_calls_; }
  // Whether the text so far ends within the reasoning.
  virtual bool in_reasoning() const = 0;

 protected:
  explicit AnswerParser(AnswerParserOptions options) : options_(std::move(options)) {}

  // One step of reading rest_; false where more text is needed, or nothing is left.
  virtual bool step() = 0;

  void begin_call(const std::string& name);
  void add_arguments(std::string_view json);
  // White space at the end waits for what follows, and is lost where a mark does.
  void add_text(std::string AnswerPieces::*part, std::string_view text);
  void drop_space() { space_.clear(); }
  void trim_next_space() { trims_ = true; }

  // How much of rest_ cannot be the beginning of one of these; all of it once the text is over.
  size_t settled_length(const std::vector<std::string_view>& marks) const;
  enum class Found : uint8_t { kYes, kNo, kPerhaps };
  // Whether rest_ begins with the mark, which is then taken off.
  Found take(std::string_view mark);
  void skip(size_t num_bytes) { rest_.erase(0, num_bytes); }

  AnswerParserOptions options_;
  std::string rest_;
  bool ended_ = false;

 private:
  AnswerPieces run();

  AnswerPieces out_;
  std::string space_;
  bool trims_ = false;
  int32_t num_calls_ = 0;
};

// Null where an answer is content as a whole.
std::unique_ptr<AnswerParser> make_answer_parser(AnswerParserOptions options);

}  // namespace outrider
