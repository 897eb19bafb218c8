// One value by one format spec of str.format. See format.h.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "models/text/jinja/format.h"

namespace outrider::jinja {

namespace {

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, or none given
  char sign = 0;   // + - or a space, or none given
  bool alternate = false;
  bool zero = false;  // pads between sign and digits
  size_t width = 0;
  char grouping = 0;  // , or _
  int precision = -1;
  char type = 0;
};

bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

// Takes the character at `at` when it is one of the set; else 0.
char take(std::string_view bytes, size_t& at, std::string_view set) {
  return at < bytes.size() && is_one_of(bytes[at], set) ? bytes[at++] : '\0';
}

Spec read_spec(std::string_view bytes) {
  Spec spec;
  size_t at = 0;
  size_t second = 0;
  if (!bytes.empty()) next_code_point(bytes, second);
  const bool has_fill = second < bytes.size() && is_one_of(bytes[second], "<>^=");
  if (has_fill) spec.fill = bytes.substr(0, at = second);
  spec.align = take(bytes, at, "<>^=");
  spec.sign = take(bytes, at, "+- ");
  spec.alternate = take(bytes, at, "#") != 0;
  spec.zero = !has_fill && take(bytes, at, "0") != 0;
  if (spec.zero) spec.fill = "0";
  spec.width = read_format_size(bytes, at);
  spec.grouping = take(bytes, at, ",_");
  if (take(bytes, at, ".") != 0) {
    const size_t begin = at;
    spec.precision = static_cast<int>(read_format_size(bytes, at));
    if (at == begin) throw Failure("a format spec lacks its precision");
  }
  if (at < bytes.size()) spec.type = bytes[at++];
  if (at < bytes.size()) throw Failure(fmt::format("the format spec '{}' is not supported", bytes));
  return spec;
}

[[noreturn]] void fail_type_letter(const Spec& spec, const Value& value) {
  throw Failure(
      fmt::format("format code '{}' is not for a value of type '{}'", spec.type, type_name(value)));
}

// body behind sign, in the width of the spec.
Text padded(
    Budget& budget, const Spec& spec, const std::string& sign, const Text& body, char align) {
  const size_t length = sign.size() + count_code_points(body.bytes);
  const size_t room = spec.width > length ? spec.width - length : 0;
  const size_t before = align == '<' ? 0 : align == '^' ? room / 2 : room;
  TextBuilder out(budget);
  const auto fill = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) out.append(spec.fill);
  };
  if (align == '=') out.append(sign);
  fill(before);
  if (align != '=') out.append(sign);
  out.append(body);
  fill(room - before);
  return out.take();
}

Text format_text(Budget& budget, const Spec& spec, const Value& value) {
  if (spec.type != 0 && spec.type != 's') fail_type_letter(spec, value);
  if (spec.align == '=' || spec.sign != 0 || spec.alternate || spec.grouping != 0)
    throw Failure("a format spec for numbers was given to a text");
  const Text& text = value.text();
  const size_t end = spec.precision < 0
                         ? text.bytes.size()
                         : byte_offset(text.bytes, static_cast<size_t>(spec.precision));
  return padded(
      budget, spec, "", substring(budget, text, 0, end), spec.align == 0 ? '<' : spec.align);
}

void group_digits(const Spec& spec, std::string& digits) {
  if (spec.grouping == 0) return;
  const bool by_four = is_one_of(spec.type, "boxX");
  if (by_four && spec.grouping == ',') throw Failure("',' groups decimal digits only");
  if (spec.type == 'n') throw Failure("'n' groups no digits");
  const bool pads_digits = spec.zero || (spec.align == '=' && spec.fill == "0");
  if (pads_digits && spec.width > 0) throw Failure("zeros with grouped digits are not supported");
  const size_t size = by_four ? 4 : 3;
  const std::string_view set = by_four ? "0123456789abcdefABCDEF" : "0123456789";
  const size_t end = std::min(digits.find_first_not_of(set), digits.size());
  for (size_t at = end; at > size;) digits.insert(at -= size, 1, spec.grouping);
}

std::string whole_digits(const Spec& spec, const Value& value) {
  if (spec.precision >= 0) throw Failure("a whole number is formatted without a precision");
  const int64_t whole = value.as_int();
  const uint64_t size = whole < 0 ? 0 - static_cast<uint64_t>(whole) : static_cast<uint64_t>(whole);
  const char type = is_one_of(spec.type, "boxX") ? spec.type : 'd';
  return fmt::format(fmt::runtime(std::string("{:") + type + "}"), size);
}

// A float with a precision and no type: as g, with a digit behind the point at least.
std::string general_digits(double value, int precision) {
  precision = std::max(precision, 1);
  const std::string rounded = fmt::format("{:.{}e}", value, precision - 1);
  const int exponent = std::stoi(rounded.substr(rounded.find('e') + 1));
  if (exponent >= -4 && exponent < precision - 1) {
    const std::string digits = fmt::format("{:.{}g}", value, precision);
    return digits.find('.') == std::string::npos ? digits + ".0" : digits;
  }
  if (exponent < -4) return fmt::format("{:.{}g}", value, precision);
  size_t end = rounded.find('e');
  if (rounded.find('.') < end) {
    while (rounded[end - 1] == '0') --end;
    if (rounded[end - 1] == '.') --end;
  }
  return rounded.substr(0, end) + rounded.substr(rounded.find('e'));
}

std::string float_digits(const Spec& spec, double value) {
  if (spec.alternate) throw Failure("'#' is not supported for floating-point numbers");
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  if (spec.type == 0) {
    return spec.precision < 0 || !std::isfinite(value) ? double_to_string(value)
                                                       : general_digits(value, precision);
  }
  if (spec.type == '%') return fmt::format("{:.{}f}%", value * 100, precision);
  const char type = spec.type == 'n' ? 'g' : spec.type;
  const int least = is_one_of(type, "gG") ? 1 : 0;
  return fmt::format(
      fmt::runtime(std::string("{:.{}") + type + "}"), value, std::max(precision, least));
}

// A whole number too large for 64 bits is a double that prints as it was written.
std::string large_digits(const Spec& spec, const std::string& digits) {
  if (spec.precision >= 0 || is_one_of(spec.type, "boxX"))
    throw Failure("a number is too large to format");
  return digits.substr(digits.starts_with('-') ? 1 : 0);
}

Text format_number(Budget& budget, const Spec& spec, const Value& value) {
  constexpr std::string_view kWhole = "dnboxX";
  constexpr std::string_view kFloat = "eEfFgGn%";
  const bool is_large = value.is(Kind::kDouble) && value.note() != nullptr;
  const bool is_whole = value.is_integral() || is_large;
  const bool as_whole = is_whole && (spec.type == 0 || is_one_of(spec.type, kWhole));
  if (!as_whole && spec.type != 0 && !is_one_of(spec.type, kFloat)) fail_type_letter(spec, value);
  const bool negative =
      value.is(Kind::kDouble) ? std::signbit(value.as_double()) : value.as_int() < 0;
  std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  std::string digits = !as_whole  ? float_digits(spec, std::fabs(value.as_double()))
                       : is_large ? large_digits(spec, *value.note())
                                  : whole_digits(spec, value);
  group_digits(spec, digits);
  if (spec.alternate && is_one_of(spec.type, "boxX")) sign += std::string("0") + spec.type;
  const char align = spec.align != 0 ? spec.align : spec.zero ? '=' : '>';
  return padded(budget, spec, sign, {std::move(digits), {}}, align);
}

}  // namespace

Text format_by_spec(Budget& budget, const Value& value, std::string_view spec) {
  if (spec.empty()) return to_text(budget, value);
  if (value.is(Kind::kString)) return format_text(budget, read_spec(spec), value);
  if (value.is_number()) return format_number(budget, read_spec(spec), value);
  throw Failure(fmt::format("a value of type '{}' takes no format spec", type_name(value)));
}

}  // namespace outrider::jinja
