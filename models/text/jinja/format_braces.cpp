// str.format: texts with fields in braces. See format.h.
#include <fmt/core.h>

#include <algorithm>

#include "models/text/jinja/format.h"
#include "models/text/jinja/operators.h"

namespace outrider::jinja {

namespace {

constexpr int kMaxNesting = 3;  // a field, fields in its spec, and in theirs

// What stands between two braces, as places in the format.
struct Field {
  size_t name_begin = 0, name_end = 0;
  char conversion = 0;
  size_t spec_begin = 0, spec_end = 0;
};

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// `at` is behind the opening brace and ends behind the closing one.
Field read_field(std::string_view bytes, size_t& at) {
  Field field{.name_begin = at};
  while (at < bytes.size() && std::string_view("!:}").find(bytes[at]) == std::string_view::npos) {
    if (bytes[at] == '{') throw Failure("unexpected '{' in a field name");
    if (bytes[at] == '[') at = std::min(bytes.find(']', at), bytes.size() - 1);
    ++at;
  }
  field.name_end = at;
  if (at + 1 < bytes.size() && bytes[at] == '!') {
    field.conversion = bytes[at + 1];
    at += 2;
    if (at < bytes.size() && bytes[at] != ':' && bytes[at] != '}')
      throw Failure("expected ':' after the conversion of a field");
  }
  field.spec_begin = field.spec_end = at;
  if (at < bytes.size() && bytes[at] == ':') {
    field.spec_begin = ++at;
    for (int depth = 0; at < bytes.size() && (depth > 0 || bytes[at] != '}'); ++at) {
      if (bytes[at] == '{') ++depth;
      if (bytes[at] == '}') --depth;
    }
    field.spec_end = at;
  }
  if (at >= bytes.size() || bytes[at] != '}') throw Failure("a field of a format has no end");
  ++at;
  return field;
}

class BracesFormatter {
 public:
  BracesFormatter(Budget& budget, const Arguments& arguments)
      : budget_(budget), arguments_(arguments) {}

  Text fill(const Text& format, int nesting) {
    if (nesting > kMaxNesting) throw Failure("the fields of a format are nested too deep");
    TextBuilder out(budget_);
    const std::string_view bytes = format.bytes;
    for (size_t at = 0; at < bytes.size();) {
      const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
      out.append(format, at, brace);
      if (brace == bytes.size()) break;
      budget_.step();
      at = brace + 1;
      if (at < bytes.size() && bytes[at] == bytes[brace]) {
        out.append(format, brace, at++);
        continue;
      }
      if (bytes[brace] == '}') throw Failure("a single '}' in a format");
      if (at == bytes.size()) throw Failure("a single '{' in a format");
      const Field field = read_field(bytes, at);
      out.append(one(format, field, nesting));
    }
    return out.take();
  }

 private:
  Text one(const Text& format, const Field& field, int nesting) {
    const std::string_view bytes = format.bytes;
    Value value = look_up(bytes.substr(field.name_begin, field.name_end - field.name_begin));
    const Text spec =
        fill(substring(budget_, format, field.spec_begin, field.spec_end), nesting + 1);
    if (field.conversion == 's') {
      value = Value::string(to_text(budget_, value));
    } else if (field.conversion == 'r') {
      TextBuilder builder(budget_);
      append_repr(budget_, builder, value);
      value = Value::string(builder.take());
    } else if (field.conversion != 0) {
      throw Failure(fmt::format("the conversion '!{}' is not supported", field.conversion));
    }
    return format_by_spec(budget_, value, spec.bytes);
  }

  // "0.role[content]": an argument, then its attributes and items.
  Value look_up(std::string_view name) {
    size_t at = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, at));
    while (at < name.size()) {
      const bool is_attribute = name[at] == '.';
      if (!is_attribute && name[at] != '[')
        throw Failure("only '.' or '[' may follow ']' in a field");
      const size_t begin = at + 1;
      const size_t end = is_attribute ? name.find_first_of(".[", begin) : name.find(']', begin);
      const std::string_view part = name.substr(begin, end - begin);
      if (part.empty()) throw Failure("a field of a format has an empty attribute");
      at = end == std::string_view::npos ? name.size() : is_attribute ? end : end + 1;
      budget_.step();
      if (is_attribute) {
        value = get_attribute(value, part);
      } else {
        value = get_item(budget_, value, is_number(part) ? number(part) : Value::string(part));
      }
    }
    return value;
  }

  static Value number(std::string_view digits) {
    size_t at = 0;
    return Value::integer(static_cast<int64_t>(read_format_size(digits, at)));
  }

  const Value& argument(std::string_view name) {
    if (name.empty() || is_number(name)) {
      const bool is_counted = name.empty();
      if (is_counted ? is_numbered_ : num_counted_ > 0)
        throw Failure("a format may not mix numbered fields with fields that are counted");
      is_numbered_ = !is_counted;
      const auto index = is_counted ? num_counted_++ : static_cast<size_t>(number(name).as_int());
      if (index < arguments_.positional.size()) return arguments_.positional[index];
      throw Failure(fmt::format("a format has no value number {}", index));
    }
    for (const auto& [given, value] : arguments_.named)
      if (given.bytes == name) return value;
    throw Failure(fmt::format("a format has no value named '{}'", name));
  }

  Budget& budget_;
  const Arguments& arguments_;
  bool is_numbered_ = false;
  size_t num_counted_ = 0;
};

}  // namespace

Value format_braces(Budget& budget, const Text& format, const Arguments& arguments) {
  return Value::string(BracesFormatter(budget, arguments).fill(format, 1));
}

}  // namespace outrider::jinja
