// Answers with marks in their text: <think>, <tool_call> and their like.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/answers/answer_parser.h"
#include "http/answers/json_scan.h"

namespace outrider {

class MarkedParser : public AnswerParser {
 public:
  explicit MarkedParser(AnswerParserOptions options);
  bool in_reasoning() const override { return part_ == Part::kReasoning; }

 protected:
  bool step() override;

 private:
  enum class Part : uint8_t {
    kStart,  // of the answer
    kReasoning,
    kContent,
    kCalls,      // before, between and behind calls
    kMember,     // of an object that is a call
    kArguments,  // JSON, passed on as it comes
    kBrace,      // JSON arguments are about to begin
    kParameter,  // in XML
  };

  bool read_start();
  bool read_reasoning();
  bool read_content();
  bool read_calls();
  Found begins_with_call();
  bool named_first(std::string_view object) const;
  bool read_object_start();
  bool read_member();
  void take_member(const std::string& key, std::string_view value);
  void end_object();
  bool read_name();
  bool read_brace();
  bool read_arguments();
  bool read_parameter();
  void take_parameter(std::string_view key, std::string_view value);

  const ToolCallFormat& calls() const { return *options_.formats.tool_calls; }
  bool looks_for_calls() const { return options_.functions != nullptr; }
  bool is_offered(const std::string& name) const { return options_.functions->contains(name); }

  Part part_ = Part::kStart;
  bool is_open_ = false;    // a call's opener has been read
  bool in_object_ = false;  // of the call whose arguments are read
  // Of an object, as far as it has been read.
  std::string name_;
  std::string arguments_;
  bool is_announced_ = false;
  std::optional<JsonScan> scan_;
  bool has_parameters_ = false;
};

}  // namespace outrider
