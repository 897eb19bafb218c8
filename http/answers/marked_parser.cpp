// See marked_parser.h.
#include "http/answers/marked_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace outrider {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kEmptyObject = "{}";
constexpr std::string_view kMistralOpener = "[TOOL_CALLS]";  // of a list or of a name

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

bool is_arguments_key(std::string_view key) { return key == "arguments" || key == "parameters"; }

// How parameters stand in XML.
struct XmlMarks {
  std::string_view key_begin;
  std::string_view key_end;
  std::string_view value_begin;
  std::string_view value_end;
};

const XmlMarks& marks_of(ArgumentStyle style) {
  static constexpr XmlMarks kQwen = {"<parameter=", ">", "", "</parameter>"};
  static constexpr XmlMarks kGlm = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
  return style == ArgumentStyle::kQwenXml ? kQwen : kGlm;
}

// The value without what the layout puts around it: GLM's may be any white space, Qwen's is one
// line end, since texts such as code begin with blanks.
std::string_view unwrapped(std::string_view value, ArgumentStyle style) {
  if (style == ArgumentStyle::kGlmXml) {
    value.remove_prefix(std::min(value.find_first_not_of(kSpace), value.size()));
    return value.substr(0, value.find_last_not_of(kSpace) + 1);
  }
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

std::string dumped(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

MarkedParser::MarkedParser(AnswerParserOptions options) : AnswerParser(std::move(options)) {
  if (options_.begins_in_reasoning && options_.formats.reasoning != nullptr) {
    part_ = Part::kReasoning;
    trim_next_space();
  }
}

bool MarkedParser::step() {
  switch (part_) {
    case Part::kStart:
      return read_start();
    case Part::kReasoning:
      return read_reasoning();
    case Part::kContent:
      return read_content();
    case Part::kCalls:
      return read_calls();
    case Part::kMember:
      return read_member();
    case Part::kArguments:
      return read_arguments();
    case Part::kBrace:
      return read_brace();
    case Part::kParameter:
      return read_parameter();
  }
  return false;
}

// Reasoning comes first if at all, and so does an answer that is a call as a whole.
bool MarkedParser::read_start() {
  const size_t begin = rest_.find_first_not_of(kSpace);
  if (begin == std::string::npos && !ended_) return false;
  const std::string space = rest_.substr(0, begin);
  skip(std::min(begin, rest_.size()));
  const Found found =
      options_.formats.reasoning == nullptr ? Found::kNo : take(options_.formats.reasoning->begin);
  if (found == Found::kYes) {
    part_ = Part::kReasoning;
    trim_next_space();
    return true;
  }
  const Found call = found == Found::kNo ? begins_with_call() : Found::kNo;
  if (call == Found::kYes) {
    part_ = Part::kCalls;
    return true;
  }
  rest_.insert(0, space);
  if (found == Found::kPerhaps || call == Found::kPerhaps) return false;
  part_ = Part::kContent;
  return true;
}

// Where any object could be the answer, only one that names an offered function is a call.
AnswerParser::Found MarkedParser::begins_with_call() {
  if (!looks_for_calls() || !calls().trigger.empty()) return Found::kNo;
  const Found opened = take(calls().opener);
  if (opened != Found::kNo) return opened;
  const size_t brace = rest_.find_first_not_of(" \t\r\n[");
  if (brace == std::string::npos) return ended_ ? Found::kNo : Found::kPerhaps;
  if (rest_[brace] != '{') return Found::kNo;
  const std::string_view object = std::string_view(rest_).substr(brace);
  if (named_first(object)) return Found::kYes;  // whatever follows: a stream cannot wait for it
  const auto whole = whole_json_value(object);
  if (!whole) return ended_ ? Found::kNo : Found::kPerhaps;
  const auto value = nlohmann::json::parse(*whole, nullptr, false);
  const bool is_named = value.is_object() && value.contains("name") && value["name"].is_string();
  return is_named && is_offered(value["name"]) ? Found::kYes : Found::kNo;
}

// Whether the first member of an object that is being written is the name of an offered function.
bool MarkedParser::named_first(std::string_view object) const {
  constexpr std::string_view kKey = "\"name\"";
  const auto skip_space = [&](size_t from) {
    return std::min(object.find_first_not_of(kSpace, from), object.size());
  };
  size_t at = skip_space(1);
  if (!object.substr(at).starts_with(kKey)) return false;
  at = skip_space(at + kKey.size());
  if (at == object.size() || object[at] != ':') return false;
  const auto name = whole_json_value(object.substr(skip_space(at + 1)));
  return name && is_offered(json_string(*name).value_or(""));
}

bool MarkedParser::read_reasoning() {
  const std::string_view mark = options_.formats.reasoning->end;
  const size_t end = rest_.find(mark);
  const bool is_whole = end != std::string::npos;
  const size_t length = is_whole ? end : settled_length({mark});
  add_text(&AnswerPieces::reasoning, std::string_view(rest_).substr(0, length));
  skip(length);
  if (!is_whole) {
    if (ended_) drop_space();
    return false;
  }
  skip(mark.size());
  drop_space();
  trim_next_space();
  part_ = Part::kStart;
  return true;
}

bool MarkedParser::read_content() {
  const std::string_view mark = looks_for_calls() ? calls().trigger : std::string_view();
  const size_t at = mark.empty() ? std::string::npos : rest_.find(mark);
  const size_t length = at != std::string::npos ? at : settled_length({mark});
  add_text(&AnswerPieces::content, std::string_view(rest_).substr(0, length));
  skip(length);
  if (at == std::string::npos) return false;
  drop_space();
  part_ = Part::kCalls;
  is_open_ = false;
  return true;
}

bool MarkedParser::read_calls() {
  skip(std::min(rest_.find_first_not_of(" \t\r\n,;"), rest_.size()));
  if (rest_.empty()) return false;
  bool perhaps = false;
  const auto takes = [&](std::string_view mark) {
    const Found found = take(mark);
    perhaps = perhaps || found == Found::kPerhaps;
    return found == Found::kYes;
  };
  if (takes(calls().opener)) {
    is_open_ = true;
    return true;
  }
  for (const std::string_view closer : calls().closers) {
    if (!takes(closer)) continue;
    is_open_ = false;
    return true;
  }
  if (calls().opener != calls().trigger && takes(calls().trigger)) return true;
  if (perhaps) return false;
  const bool is_open = is_open_ || calls().trigger.empty();
  // "[" may stand around a list of objects.
  if (is_open && (rest_.front() == '[' || rest_.front() == ']')) {
    skip(1);
    return true;
  }
  if (is_open && rest_.front() == '{') return read_object_start();
  const bool may_be_name = !calls().is_object() || calls().opener == kMistralOpener;
  if (is_open && may_be_name && is_name_letter(rest_.front())) return read_name();
  trim_next_space();
  part_ = Part::kContent;
  return true;
}

bool MarkedParser::read_object_start() {
  const Found call = calls().trigger.empty() ? begins_with_call() : Found::kYes;
  if (call == Found::kPerhaps) return false;
  if (call == Found::kNo) {
    if (ended_ && num_calls() > 0) rest_.clear();  // a further call, cut before its name
    part_ = Part::kContent;
    return true;
  }
  skip(1);
  name_.clear();
  arguments_.clear();
  is_announced_ = false;
  part_ = Part::kMember;
  return true;
}

bool MarkedParser::read_member() {
  const std::string_view text = rest_;
  size_t at = text.find_first_not_of(" \t\r\n,");
  if (at == std::string_view::npos) return false;
  if (text[at] != '"') {  // the end, or what no object has
    skip(at + (text[at] == '}' ? 1 : 0));
    end_object();
    return true;
  }
  const auto key = whole_json_value(text.substr(at));
  if (!key) return false;
  const size_t colon = text.find_first_not_of(kSpace, at + key->size());
  const size_t begin = colon == std::string_view::npos || text[colon] != ':'
                           ? colon
                           : text.find_first_not_of(kSpace, colon + 1);
  if (begin == std::string_view::npos) return false;
  const std::string name = json_string(*key).value_or("");
  if (is_arguments_key(name) && is_announced_ && text[begin] == '{') {
    skip(begin);
    in_object_ = true;
    scan_.emplace();
    part_ = Part::kArguments;
    return true;
  }
  const auto value = whole_json_value(text.substr(begin));
  if (!value) return false;
  const size_t length = begin + value->size();
  take_member(name, *value);
  skip(length);
  return true;
}

void MarkedParser::take_member(const std::string& key, std::string_view value) {
  if (key == "name") {
    name_ = json_string(value).value_or("");
    if (name_.empty() || is_announced_) return;
    begin_call(name_);
    add_arguments(arguments_);
    is_announced_ = true;
  } else if (is_arguments_key(key)) {
    arguments_ = json_string(value).value_or(std::string(value));  // some models quote them
    if (is_announced_) add_arguments(arguments_);
  }
}

void MarkedParser::end_object() {
  if (is_announced_ && arguments_.empty()) add_arguments(kEmptyObject);
  in_object_ = false;
  part_ = Part::kCalls;
}

bool MarkedParser::read_name() {
  const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_name_letter);
  if (end == rest_.end()) return false;
  name_.assign(rest_.begin(), end);
  begin_call(name_);
  skip(static_cast<size_t>(end - rest_.begin()));
  in_object_ = false;
  has_parameters_ = false;
  part_ = calls().style == ArgumentStyle::kJson ? Part::kBrace : Part::kParameter;
  if (calls().style == ArgumentStyle::kQwenXml) skip(rest_.starts_with('>') ? 1 : 0);
  return true;
}

// Between a name and its arguments stand marks of the format; a closer comes first where there are
// no arguments.
bool MarkedParser::read_brace() {
  const size_t brace = rest_.find('{');
  size_t closer = std::string::npos;
  // "```" also begins the block of the arguments.
  for (const std::string_view mark : calls().closers) {
    if (!mark.empty() && mark != "```") closer = std::min(closer, rest_.find(mark));
  }
  if (brace == std::string::npos && closer == std::string::npos) {
    if (ended_) add_arguments(kEmptyObject);
    return false;
  }
  const bool has_arguments = brace < closer;
  skip(std::min(brace, closer));
  if (!has_arguments) add_arguments(kEmptyObject);
  scan_.emplace();
  part_ = has_arguments ? Part::kArguments : Part::kCalls;
  is_open_ = false;
  return true;
}

bool MarkedParser::read_arguments() {
  const size_t length = scan_->take(rest_);
  add_arguments(std::string_view(rest_).substr(0, length));
  arguments_ = kEmptyObject;  // there were some
  skip(length);
  if (!scan_->done()) return false;
  part_ = in_object_ ? Part::kMember : Part::kCalls;
  is_open_ = in_object_;
  return true;
}

bool MarkedParser::read_parameter() {
  skip(std::min(rest_.find_first_not_of(kSpace), rest_.size()));
  if (rest_.empty() && !ended_) return false;
  const XmlMarks& marks = marks_of(calls().style);
  const Found found = take(marks.key_begin);
  if (found == Found::kPerhaps) return false;
  if (found == Found::kNo) {
    add_arguments(has_parameters_ ? "}" : kEmptyObject);
    part_ = Part::kCalls;
    is_open_ = false;
    return true;
  }
  const size_t key_end = rest_.find(marks.key_end);
  const size_t value_begin = key_end == std::string::npos
                                 ? key_end
                                 : rest_.find(marks.value_begin, key_end + marks.key_end.size());
  const size_t value_end =
      value_begin == std::string::npos ? value_begin : rest_.find(marks.value_end, value_begin);
  if (value_end == std::string::npos) {
    if (ended_) {
      rest_.clear();
      return true;  // cut in the middle: the parameter is lost
    }
    rest_.insert(0, marks.key_begin);
    return false;
  }
  const size_t begin = value_begin + marks.value_begin.size();
  const std::string_view text = rest_;
  take_parameter(text.substr(0, key_end), text.substr(begin, value_end - begin));
  skip(value_end + marks.value_end.size());
  return true;
}

void MarkedParser::take_parameter(std::string_view key, std::string_view value) {
  const std::string name(key);
  value = unwrapped(value, calls().style);
  const auto function = options_.functions->find(name_);
  const bool is_text = function != options_.functions->end() && function->second.contains(name);
  const bool is_json = !is_text && nlohmann::json::accept(value);
  add_arguments(has_parameters_ ? ", " : "{");
  add_arguments(dumped(name) + ": " + (is_json ? std::string(value) : dumped(std::string(value))));
  has_parameters_ = true;
}

}  // namespace outrider
