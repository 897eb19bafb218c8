// Construction, truth, equality, order and printing of template values, as Python does it.
#include "models/text/jinja/value.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/text/tokenizer/unicode.h"

namespace outrider::jinja {

Value Value::undefined(std::string complaint) {
  return Value(Kind::kUndefined, std::make_shared<const std::string>(std::move(complaint)));
}

Value Value::none() { return Value(Kind::kNone); }

Value Value::boolean(bool from) {
  Value value(Kind::kBool);
  value.boolean_ = from;
  return value;
}

Value Value::integer(int64_t from) {
  Value value(Kind::kInt);
  value.integer_ = from;
  return value;
}

Value Value::real(double from) {
  Value value(Kind::kDouble);
  value.real_ = from;
  return value;
}

Value Value::big_integer(double from, std::string digits) {
  Value value = real(from);
  value.object_ = std::make_shared<const std::string>(std::move(digits));
  return value;
}

Value Value::string(Text text) {
  return Value(Kind::kString, std::make_shared<const Text>(std::move(text)));
}

Value Value::string(std::string_view trusted, bool literal) {
  Text text;
  text.bytes = trusted;
  if (literal && !trusted.empty()) text.literals.push_back({0, trusted.size()});
  return string(std::move(text));
}

namespace {

void check_depth(int depth) {
  if (depth > kMaxValueDepth) throw Failure("lists or dicts are nested too deeply");
}

}  // namespace

Value Value::list(List list) {
  list.depth = 1;
  for (const Value& item : list.items) list.depth = std::max(list.depth, item.depth() + 1);
  check_depth(list.depth);
  return Value::list(std::make_shared<const List>(std::move(list)));
}

Value Value::list(std::shared_ptr<const List> list) { return Value(Kind::kList, std::move(list)); }

Value Value::dict(Dict dict) {
  check_depth(dict.depth);
  return Value(Kind::kDict, std::make_shared<const Dict>(std::move(dict)));
}

Value Value::callable(Callable callable) {
  check_depth(callable.receiver.depth() + 1);
  return Value(Kind::kCallable, std::make_shared<const Callable>(std::move(callable)));
}

Value Value::space(Namespace* space) {
  Value value(Kind::kNamespace);
  value.space_ = space;
  return value;
}

Value Value::loop(LoopState* loop) {
  Value value(Kind::kLoop);
  value.loop_ = loop;
  return value;
}

std::shared_ptr<const List> Value::shared_items() const {
  return std::static_pointer_cast<const List>(object_);
}

const std::string* Value::note() const {
  const bool noted = kind_ == Kind::kUndefined || kind_ == Kind::kDouble;
  return noted ? static_cast<const std::string*>(object_.get()) : nullptr;
}

int Value::depth() const {
  switch (kind_) {
    case Kind::kList:
      return items().depth;
    case Kind::kDict:
      return entries().depth;
    case Kind::kCallable:
      return function().receiver.depth() + 1;
    default:
      return 0;
  }
}

std::string hash_key(const Value& key) {
  switch (key.kind()) {
    case Kind::kUndefined:
      return "u";
    case Kind::kNone:
      return "n";
    case Kind::kBool:
    case Kind::kInt:
      return "i" + std::to_string(key.as_int());
    case Kind::kDouble: {
      const double real = key.as_double();
      if (std::floor(real) == real && std::fabs(real) < 9e18) {
        return "i" + std::to_string(static_cast<int64_t>(real));
      }
      return "d" + double_to_string(real);
    }
    case Kind::kString:
      return "s" + key.text().bytes;
    case Kind::kList: {
      if (key.items().kind != ListKind::kTuple) break;
      std::string joined = "(";
      for (const Value& item : key.items().items) {
        const std::string part = hash_key(item);
        joined += std::to_string(part.size()) + ":" + part;
        // A tuple of tuples of one shared tuple can be exponentially long.
        if (joined.size() > 1u << 20) throw Failure("a dict key is too long");
      }
      return joined;
    }
    default:
      break;
  }
  throw Failure("a value of type '" + std::string(type_name(key)) + "' cannot be a dict key");
}

size_t Dict::position(const std::string& key) const {
  if (!index.empty()) {
    const auto found = index.find(key);
    return found == index.end() ? items.size() : found->second;
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const Value& held = items[i].first;
    if (held.is(Kind::kString)) {
      if (key[0] == 's' && held.bytes() == std::string_view(key).substr(1)) return i;
    } else if (hash_key(held) == key) {
      return i;
    }
  }
  return items.size();
}

void Dict::set(Value key, Value value) {
  std::string name = hash_key(key);
  const size_t at = position(name);
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  if (at < items.size()) {
    items[at].second = std::move(value);
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
  if (items.size() < 8) return;
  if (index.empty()) {
    for (size_t i = 0; i < items.size(); ++i) index.emplace(hash_key(items[i].first), i);
  } else {
    index.emplace(std::move(name), at);
  }
}

const Value* Dict::find(const Value& key) const {
  const size_t at = position(hash_key(key));
  return at < items.size() ? &items[at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const size_t at = position("s" + std::string(key));
  return at < items.size() ? &items[at].second : nullptr;
}

void Namespace::set(const std::string& name, const Value& value) {
  if (name.starts_with('_')) throw Failure("a namespace attribute may not start with '_'");
  for (auto& [held, old] : attributes) {
    if (held != name) continue;
    old = value;
    return;
  }
  attributes.emplace_back(name, value);
}

std::string_view type_name(const Value& value) {
  static constexpr std::string_view kKinds[] = {"Undefined",
                                                "NoneType",
                                                "bool",
                                                "int",
                                                "float",
                                                "str",
                                                "list",
                                                "dict",
                                                "function",
                                                "Namespace",
                                                "LoopContext"};
  static constexpr std::string_view kLists[] = {"list", "tuple", "range", "generator", "dict view"};
  return value.is(Kind::kList) ? kLists[static_cast<size_t>(value.items().kind)]
                               : kKinds[static_cast<size_t>(value.kind())];
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kDouble:
      return value.as_double() != 0;
    case Kind::kString:
      return !value.bytes().empty();
    case Kind::kList:
      return value.items().kind == ListKind::kGenerator || !value.items().items.empty();
    case Kind::kDict:
      return !value.entries().items.empty();
    case Kind::kCallable:
    case Kind::kNamespace:
    case Kind::kLoop:
      break;
  }
  return true;
}

namespace {

bool equal_lists(Budget& budget, const List& left, const List& right) {
  if (left.kind != right.kind || left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i) {
    if (!equals(budget, left.items[i], right.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Budget& budget, const Dict& left, const Dict& right) {
  if (left.items.size() != right.items.size()) return false;
  for (const auto& [key, value] : left.items) {
    const Value* other = right.find(key);
    if (other == nullptr || !equals(budget, value, *other)) return false;
  }
  return true;
}

}  // namespace

bool equals(Budget& budget, const Value& left, const Value& right) {
  budget.step();
  if (left.is_integral() && right.is_integral()) return left.as_int() == right.as_int();
  if (left.is_number() && right.is_number()) return left.as_double() == right.as_double();
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kString:
      budget.work(std::min(left.bytes().size(), right.bytes().size()));
      return left.bytes() == right.bytes();
    case Kind::kList:
      return equal_lists(budget, left.items(), right.items());
    case Kind::kDict:
      return equal_dicts(budget, left.entries(), right.entries());
    case Kind::kCallable:
      return &left.function() == &right.function();
    case Kind::kNamespace:
      return &left.name_space() == &right.name_space();
    case Kind::kLoop:
      return &left.loop_state() == &right.loop_state();
    default:
      return true;  // undefined and none are equal to their like
  }
}

int compare(Budget& budget, const Value& left, const Value& right) {
  budget.step();
  if (left.is_integral() && right.is_integral()) {
    return left.as_int() < right.as_int() ? -1 : left.as_int() > right.as_int();
  }
  if (left.is_number() && right.is_number()) {
    return left.as_double() < right.as_double() ? -1 : left.as_double() > right.as_double();
  }
  if (left.is(Kind::kString) && right.is(Kind::kString)) {
    budget.work(std::min(left.bytes().size(), right.bytes().size()));
    return left.bytes().compare(right.bytes());
  }
  const bool lists =
      left.is(Kind::kList) && right.is(Kind::kList) && left.items().kind == right.items().kind &&
      (left.items().kind == ListKind::kList || left.items().kind == ListKind::kTuple);
  if (!lists) {
    throw Failure("values of type '" + std::string(type_name(left)) + "' and '" +
                  std::string(type_name(right)) + "' have no order");
  }
  const auto& a = left.items().items;
  const auto& b = right.items().items;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!equals(budget, a[i], b[i])) return compare(budget, a[i], b[i]);
  }
  return a.size() < b.size() ? -1 : a.size() > b.size();
}

std::string double_to_string(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
  const size_t e = shortest.find('e');
  const int exponent = std::stoi(std::string(shortest.substr(e + 1)));
  std::string digits(shortest.substr(0, e));
  std::erase_if(digits, [](char c) { return c == '-' || c == '.'; });
  const std::string sign = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    return std::string(shortest);  // to_chars writes two exponent digits at least, as Python does
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

namespace {

bool is_printable(uint32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return c == ' ' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_SO);
}

std::string escaped_for_repr(uint32_t c, char quote) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (c == '\\' || c == static_cast<uint32_t>(quote)) return {'\\', static_cast<char>(c)};
  if (is_printable(c)) return unicode::utf8(c);
  if (c < 0x100) return fmt::format("\\x{:02x}", c);
  return c < 0x10000 ? fmt::format("\\u{:04x}", c) : fmt::format("\\U{:08x}", c);
}

void append_string_repr(TextBuilder& out, const Text& text) {
  const bool single = text.bytes.find('\'') != std::string::npos;
  const char quote = single && text.bytes.find('"') == std::string::npos ? '"' : '\'';
  out.append({&quote, 1});
  out.append_mapped(text, [&](uint32_t c) { return escaped_for_repr(c, quote); });
  out.append({&quote, 1});
}

void append_list_repr(Budget& budget, TextBuilder& out, const List& list) {
  if (list.kind == ListKind::kGenerator || list.kind == ListKind::kView) {
    throw Failure("a generator cannot be printed, turn it into a list first");
  }
  if (list.kind == ListKind::kRange) throw Failure("a range cannot be printed");
  const bool tuple = list.kind == ListKind::kTuple;
  out.append(tuple ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(budget, out, list.items[i]);
  }
  if (tuple && list.items.size() == 1) out.append(",");
  out.append(tuple ? ")" : "]");
}

void append_dict_repr(Budget& budget, TextBuilder& out, const Dict& dict) {
  out.append("{");
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(budget, out, dict.items[i].first);
    out.append(": ");
    append_repr(budget, out, dict.items[i].second);
  }
  out.append("}");
}

}  // namespace

void append_repr(Budget& budget, TextBuilder& out, const Value& value) {
  budget.step();
  const DepthGuard guard(budget);
  switch (value.kind()) {
    case Kind::kUndefined:
      return out.append("Undefined");
    case Kind::kNone:
      return out.append("None");
    case Kind::kBool:
      return out.append(value.as_bool() ? "True" : "False");
    case Kind::kInt:
      return out.append(std::to_string(value.as_int()));
    case Kind::kDouble:
      return out.append(value.note() != nullptr ? *value.note()
                                                : double_to_string(value.as_double()));
    case Kind::kString:
      return append_string_repr(out, value.text());
    case Kind::kList:
      return append_list_repr(budget, out, value.items());
    case Kind::kDict:
      return append_dict_repr(budget, out, value.entries());
    case Kind::kCallable:
    case Kind::kNamespace:
    case Kind::kLoop:
      break;
  }
  throw Failure("a value of type '" + std::string(type_name(value)) + "' cannot be printed");
}

void append_string(Budget& budget, TextBuilder& out, const Value& value) {
  if (value.is(Kind::kString)) return out.append(value.text());
  if (value.is(Kind::kUndefined)) return;
  append_repr(budget, out, value);
}

Text to_text(Budget& budget, const Value& value) {
  if (value.is(Kind::kString)) {
    budget.work(value.bytes().size());
    return value.text();
  }
  TextBuilder out(budget);
  append_string(budget, out, value);
  return out.take();
}

}  // namespace outrider::jinja
