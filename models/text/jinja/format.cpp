// printf-style formatting: the % operator on strings and the format filter. See format.h.
#include "models/text/jinja/format.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace outrider::jinja {

namespace {

struct Directive {
  std::string_view flags;  // of "-0+ "
  size_t width = 0;
  int precision = -1;
  char type = 's';

  bool has(char flag) const { return flags.find(flag) != std::string_view::npos; }
};

// `at` is behind the percent sign; ends behind the type letter.
Directive read_directive(std::string_view bytes, size_t& at) {
  Directive directive;
  const size_t begin = at;
  at = std::min(bytes.find_first_not_of("-0+ ", at), bytes.size());
  directive.flags = bytes.substr(begin, at - begin);
  directive.width = read_format_size(bytes, at);
  if (at < bytes.size() && bytes[at] == '.') {
    ++at;
    directive.precision = static_cast<int>(read_format_size(bytes, at));
  }
  if (at >= bytes.size()) throw Failure("a format ends inside a directive");
  directive.type = bytes[at++];
  return directive;
}

std::string digits_of(const Directive& directive, const Value& value) {
  if (!value.is_number()) fail_type("a number format", value);
  const int precision = directive.precision < 0 ? 6 : directive.precision;
  if (directive.type == 'f' || directive.type == 'F') {
    return fmt::format("{:.{}f}", std::fabs(value.as_double()), precision);
  }
  if (directive.type == 'e') return fmt::format("{:.{}e}", std::fabs(value.as_double()), precision);
  if (directive.type == 'g') {
    return fmt::format("{:.{}g}", std::fabs(value.as_double()), std::max(precision, 1));
  }
  if (value.is(Kind::kDouble) && !(std::fabs(value.as_double()) < 9e18)) {
    throw Failure("a number is too large to format");
  }
  const int64_t whole =
      value.is(Kind::kDouble) ? static_cast<int64_t>(value.as_double()) : value.as_int();
  const uint64_t size = whole < 0 ? 0 - static_cast<uint64_t>(whole) : static_cast<uint64_t>(whole);
  if (directive.type == 'x') return fmt::format("{:x}", size);
  if (directive.type == 'X') return fmt::format("{:X}", size);
  return std::to_string(size);
}

Text format_number(const Directive& directive, const Value& value) {
  std::string digits = digits_of(directive, value);
  const bool negative =
      value.is(Kind::kDouble) ? std::signbit(value.as_double()) : value.as_int() < 0;
  const std::string sign = negative             ? "-"
                           : directive.has('+') ? "+"
                           : directive.has(' ') ? " "
                                                : "";
  const size_t length = sign.size() + digits.size();
  if (directive.has('0') && !directive.has('-') && length < directive.width) {
    digits.insert(0, directive.width - length, '0');
  }
  return {sign + digits, {}};
}

Text format_one(Budget& budget, const Directive& directive, const Value& value) {
  static constexpr std::string_view kNumbers = "diufFegxX";
  if (kNumbers.find(directive.type) != std::string_view::npos)
    return format_number(directive, value);
  TextBuilder builder(budget);
  if (directive.type == 's') {
    append_string(budget, builder, value);
  } else if (directive.type == 'r') {
    append_repr(budget, builder, value);
  } else {
    throw Failure(fmt::format("format '%{}' is not supported", directive.type));
  }
  Text text = builder.take();
  if (directive.precision < 0) return text;
  const size_t end = byte_offset(text.bytes, static_cast<size_t>(directive.precision));
  return substring(budget, text, 0, end);
}

}  // namespace

size_t read_format_size(std::string_view bytes, size_t& at) {
  size_t value = 0;
  while (at < bytes.size() && bytes[at] >= '0' && bytes[at] <= '9') {
    value = value * 10 + static_cast<size_t>(bytes[at++] - '0');
    if (value > 1000) throw Failure("a number in a format is too large");
  }
  return value;
}

Value format_percent(Budget& budget, const Text& format, const std::vector<Value>& values) {
  TextBuilder out(budget);
  size_t used = 0, at = 0;
  while (true) {
    const size_t percent = find(format.bytes, "%", at);
    out.append(format, at, std::min(percent, format.bytes.size()));
    if (percent == std::string_view::npos) break;
    budget.step();
    at = percent + 1;
    const Directive directive = read_directive(format.bytes, at);
    if (directive.type == '%') {
      out.append("%");
      continue;
    }
    if (used >= values.size()) throw Failure("a format has more directives than values");
    const Text text = format_one(budget, directive, values[used++]);
    const size_t length = count_code_points(text.bytes);
    const std::string padding(directive.width > length ? directive.width - length : 0, ' ');
    if (!directive.has('-')) out.append(padding);
    out.append(text);
    if (directive.has('-')) out.append(padding);
  }
  if (used < values.size()) throw Failure("a format has fewer directives than values");
  return Value::string(out.take());
}

}  // namespace outrider::jinja
