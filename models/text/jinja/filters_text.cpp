// Filters on text and numbers, and the table lookup of all filters.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <system_error>

#include "models/text/jinja/filters.h"
#include "models/text/jinja/format.h"
#include "models/text/jinja/operators.h"

namespace outrider::jinja {

namespace {

template <Case kCase>
Value to_case(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader(value.is(Kind::kString) ? "case" : "a case filter", arguments).finish();
  return Value::string(change_case(budget, to_text(budget, value), kCase));
}

Value trim(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("trim", arguments);
  const Text* characters = reader.next_text("chars");
  reader.finish();
  const std::string_view set = characters == nullptr ? std::string_view() : characters->bytes;
  if (set.size() > 256) throw Failure("trim takes at most 256 bytes of characters");
  const Text text = to_text(budget, value);
  const TextSpan kept =
      stripped_range(text.bytes, Side::kBoth, characters == nullptr ? nullptr : &set);
  return Value::string(substring(budget, text, kept.begin, kept.end));
}

Value replace_filter(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("replace", arguments);
  const Text from = to_text(budget, reader.require("old"));
  const Text to = to_text(budget, reader.require("new"));
  const int64_t count = reader.next_int("count", -1);
  reader.finish();
  return Value::string(replace(budget, to_text(budget, value), from, to, count));
}

Value otherwise(Budget&, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("default", arguments);
  const Value* given = reader.next("default_value");
  const bool also_false = reader.next_bool("boolean", false);
  reader.finish();
  if (!value.is(Kind::kUndefined) && !(also_false && !is_true(value))) return value;
  return given == nullptr ? Value::string("") : *given;
}

Value to_string(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("string", arguments).finish();
  return value.is(Kind::kString) ? value : Value::string(to_text(budget, value));
}

Value escape(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("escape", arguments).finish();
  const Text text = to_text(budget, value);
  TextBuilder builder(budget);
  for (size_t at = 0; at < text.bytes.size(); ++at) {
    static constexpr std::string_view kSpecial = "&<>\"'";
    static constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const size_t special = kSpecial.find(text.bytes[at]);
    if (special == std::string_view::npos) {
      const size_t next = std::min(text.bytes.find_first_of(kSpecial, at), text.bytes.size());
      builder.append(text, at, next);
      at = next - 1;
    } else {
      builder.append(kEntities[special]);
    }
  }
  return Value::string(builder.take());
}

Value indent(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("indent", arguments);
  const Value* width = reader.next("width");
  const bool first = reader.next_bool("first", false);
  const bool blank = reader.next_bool("blank", false);
  reader.finish();
  Text indentation;
  if (width != nullptr && width->is(Kind::kString)) {
    indentation = width->text();
  } else {
    const int64_t size = width == nullptr ? 4 : expect_int(*width, "indent");
    if (size > 1000) throw Failure("indent takes a width of at most 1000");
    indentation.bytes.assign(static_cast<size_t>(std::max<int64_t>(size, 0)), ' ');
  }
  Text text = expect_text(value, "indent");
  text.bytes += '\n';
  const std::vector<Text> lines = split_lines(budget, text, false);
  TextBuilder builder(budget);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) builder.append("\n");
    const bool wanted = i == 0 ? first : blank || !lines[i].bytes.empty();
    if (wanted) builder.append(indentation);
    builder.append(lines[i]);
  }
  return Value::string(builder.take());
}

Value center(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("center", arguments);
  const int64_t width = reader.next_int("width", 80);
  reader.finish();
  if (width > 100'000) throw Failure("center takes a width of at most 100000");
  const Text text = to_text(budget, value);
  const auto length = static_cast<int64_t>(count_code_points(text.bytes));
  const int64_t margin = std::max<int64_t>(width - length, 0);
  const int64_t left = margin / 2 + (margin & width & 1);
  TextBuilder builder(budget);
  builder.append(std::string(static_cast<size_t>(left), ' '));
  builder.append(text);
  builder.append(std::string(static_cast<size_t>(margin - left), ' '));
  return Value::string(builder.take());
}

Value word_count(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("wordcount", arguments).finish();
  const Text text = to_text(budget, value);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.bytes.size();) {
    const bool word = is_word(next_code_point(text.bytes, at));
    if (word && !inside) ++words;
    inside = word;
  }
  return Value::integer(words);
}

Value format(Budget& budget, const Value& value, const Arguments& arguments) {
  if (!arguments.named.empty()) throw Failure("format takes no named arguments");
  return format_percent(budget, to_text(budget, value), arguments.positional);
}

// The digits of a Python number without its underscores and the white space around it.
std::string number_text(std::string_view bytes) {
  const TextSpan kept = stripped_range(bytes, Side::kBoth, nullptr);
  std::string out;
  for (size_t i = kept.begin; i < kept.end; ++i) {
    const bool joins = bytes[i] == '_' && i > kept.begin && i + 1 < kept.end &&
                       std::isalnum(static_cast<unsigned char>(bytes[i - 1])) &&
                       std::isalnum(static_cast<unsigned char>(bytes[i + 1]));
    if (!joins) out += bytes[i];
  }
  return out;
}

std::optional<int64_t> parse_integer(std::string_view bytes, int base) {
  std::string text = number_text(bytes);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.erase(0, 1);
  if (base != 10 && text.size() > 2 && text[0] == '0') {
    const int letter = text[1] | 0x20;
    const int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named == base) text.erase(0, 2);
  }
  if (text.empty() || text[0] == '-') return std::nullopt;
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  if (error == std::errc::result_out_of_range) throw Failure("a number grows beyond 64 bits");
  if (error != std::errc() || stop != end) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> parse_real(std::string_view bytes) {
  const std::string text = number_text(bytes);
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  const std::string bare =
      !lower.empty() && (lower[0] == '-' || lower[0] == '+') ? lower.substr(1) : lower;
  const bool named = bare == "inf" || bare == "infinity" || bare == "nan";
  if (!named && bare.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
  if (text.empty()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> truncate(double value) {
  if (std::isnan(value) || std::fabs(value) >= 9.2e18) return std::nullopt;
  return static_cast<int64_t>(value);
}

Value to_int(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("int", arguments);
  const Value* given = reader.next("default");
  const int64_t base = reader.next_int("base", 10);
  reader.finish();
  if (base < 2 || base > 36) throw Failure("int takes a base from 2 to 36");
  std::optional<int64_t> result;
  if (value.is(Kind::kString)) {
    budget.work(value.bytes().size());
    result = parse_integer(value.bytes(), static_cast<int>(base));
    if (!result) {
      if (const auto real = parse_real(value.bytes())) result = truncate(*real);
    }
  } else if (value.is_integral()) {
    result = value.as_int();
  } else if (value.is(Kind::kDouble)) {
    result = truncate(value.as_double());
    if (!result && !std::isnan(value.as_double()))
      throw Failure("a number is too large for an integer");
  } else if (value.is(Kind::kUndefined)) {
    fail_type("int", value);
  }
  if (result) return Value::integer(*result);
  return given == nullptr ? Value::integer(0) : *given;
}

Value to_float(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("float", arguments);
  const Value* given = reader.next("default");
  reader.finish();
  if (value.is_number()) return Value::real(value.as_double());
  if (value.is(Kind::kUndefined)) fail_type("float", value);
  if (value.is(Kind::kString)) {
    budget.work(value.bytes().size());
    if (const auto real = parse_real(value.bytes())) return Value::real(*real);
  }
  return given == nullptr ? Value::real(0.0) : *given;
}

Value absolute(Budget&, const Value& value, const Arguments& arguments) {
  ArgumentReader("abs", arguments).finish();
  if (value.is(Kind::kDouble)) return Value::real(std::fabs(value.as_double()));
  const int64_t whole = expect_int(value, "abs");
  return whole < 0 ? negate(value) : Value::integer(whole);
}

// round(x, n) of Python: to the nearest decimal, ties by the exact binary value.
double round_decimal(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-std::max<int64_t>(precision, -400)));
    return std::isfinite(unit) ? std::nearbyint(value / unit) * unit : 0.0;
  }
  return std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr);
}

Value round_filter(Budget&, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("round", arguments);
  const int64_t precision = reader.next_int("precision", 0);
  const Text* method = reader.next_text("method");
  reader.finish();
  const std::string_view how = method == nullptr ? "common" : std::string_view(method->bytes);
  if (!value.is_number()) fail_type("round", value);
  if (how == "common") {
    if (value.is(Kind::kDouble)) return Value::real(round_decimal(value.as_double(), precision));
    if (precision >= 0) return Value::integer(value.as_int());
    return Value::integer(static_cast<int64_t>(round_decimal(value.as_double(), precision)));
  }
  if (how != "ceil" && how != "floor") throw Failure("round knows 'common', 'ceil' and 'floor'");
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_double() * unit;
  return Value::real((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

constexpr NamedFilter kFilters[] = {{"trim", trim},
                                    {"upper", to_case<Case::kUpper>},
                                    {"lower", to_case<Case::kLower>},
                                    {"title", to_case<Case::kTitleFilter>},
                                    {"capitalize", to_case<Case::kCapitalize>},
                                    {"replace", replace_filter},
                                    {"default", otherwise},
                                    {"d", otherwise},
                                    {"string", to_string},
                                    {"safe", to_string},
                                    {"escape", escape},
                                    {"e", escape},
                                    {"forceescape", escape},
                                    {"indent", indent},
                                    {"center", center},
                                    {"wordcount", word_count},
                                    {"format", format},
                                    {"int", to_int},
                                    {"float", to_float},
                                    {"abs", absolute},
                                    {"round", round_filter},
                                    {"tojson", to_json}};

}  // namespace

const NamedFilter* find_text_filter(std::string_view name) { return find_named(kFilters, name); }

bool is_filter(std::string_view name) {
  return find_text_filter(name) != nullptr || find_sequence_filter(name) != nullptr;
}

Value apply_filter(Budget& budget,
                   std::string_view name,
                   const Value& value,
                   const Arguments& arguments) {
  budget.step();
  const DepthGuard guard(budget);
  const NamedFilter* filter = find_text_filter(name);
  if (filter == nullptr) filter = find_sequence_filter(name);
  if (filter == nullptr) throw Failure(fmt::format("there is no filter named '{}'", name));
  return filter->apply(budget, value, arguments);
}

}  // namespace outrider::jinja
