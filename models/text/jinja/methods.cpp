// Methods of strings, dicts and lists. Those that would change a list or dict are known by name and
// refused when called, as the sandbox of Hugging Face does.
#include <utf8proc.h>

#include <algorithm>

#include "models/text/jinja/call.h"
#include "models/text/jinja/format.h"
#include "models/text/jinja/loop.h"
#include "models/text/jinja/operators.h"

namespace outrider::jinja {

namespace {

using Method = Value (*)(Budget&, const Value&, ArgumentReader&);

struct NamedMethod {
  std::string_view name;
  Method call;
};

template <Side kSide>
Value strip(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Text* characters = arguments.next_text("chars");
  const std::string_view set = characters == nullptr ? std::string_view() : characters->bytes;
  budget.work(self.bytes().size() + set.size());
  if (set.size() > 256) throw Failure("strip takes at most 256 bytes of characters");
  const TextSpan kept = stripped_range(self.bytes(), kSide, characters == nullptr ? nullptr : &set);
  return Value::string(substring(budget, self.text(), kept.begin, kept.end));
}

template <Case kCase>
Value to_case(Budget& budget, const Value& self, ArgumentReader&) {
  return Value::string(change_case(budget, self.text(), kCase));
}

Value text_list(std::vector<Text> texts) {
  std::vector<Value> items;
  for (Text& text : texts) items.push_back(Value::string(std::move(text)));
  return make_list(std::move(items));
}

template <Side kFrom>
Value split_text(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Text* separator = arguments.next_text("sep");
  const int64_t count = arguments.next_int("maxsplit", -1);
  return text_list(split(budget, self.text(), separator, count, kFrom));
}

Value lines(Budget& budget, const Value& self, ArgumentReader& arguments) {
  return text_list(split_lines(budget, self.text(), arguments.next_bool("keepends", false)));
}

bool has_affix(std::string_view bytes, std::string_view affix, bool at_end) {
  return at_end ? bytes.ends_with(affix) : bytes.starts_with(affix);
}

template <bool kAtEnd>
Value affix_test(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Value& affix = arguments.require("affix");
  if (!affix.is(Kind::kList)) {
    return Value::boolean(has_affix(self.bytes(), expect_text(affix, "startswith").bytes, kAtEnd));
  }
  for (const Value& one : affix.items().items) {
    budget.step();
    if (has_affix(self.bytes(), expect_text(one, "startswith").bytes, kAtEnd)) {
      return Value::boolean(true);
    }
  }
  return Value::boolean(false);
}

template <bool kAtEnd>
Value remove_affix(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Text& affix = expect_text(arguments.require("affix"), "removeprefix");
  const size_t size = self.bytes().size();
  const size_t cut = has_affix(self.bytes(), affix.bytes, kAtEnd) ? affix.bytes.size() : 0;
  return Value::string(
      substring(budget, self.text(), kAtEnd ? 0 : cut, kAtEnd ? size - cut : size));
}

Value replace_all(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Text& from = expect_text(arguments.require("old"), "replace");
  const Text& to = expect_text(arguments.require("new"), "replace");
  return Value::string(replace(budget, self.text(), from, to, arguments.next_int("count", -1)));
}

Value join(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const auto items = iterate(budget, arguments.require("iterable"));
  TextBuilder builder(budget);
  for (size_t i = 0; i < items->items.size(); ++i) {
    budget.step();
    if (i > 0) builder.append(self.text());
    builder.append(expect_text(items->items[i], "join"));
  }
  return Value::string(builder.take());
}

int64_t position_of(Budget& budget, const Value& self, ArgumentReader& arguments, bool last) {
  const std::string needle = expect_text(arguments.require("sub"), "find").bytes;
  const Value none = Value::none();
  const Value* start = arguments.next("start");
  const Value* stop = arguments.next("end");
  const int64_t size = length_of(budget, self);
  budget.work(2 * self.bytes().size());
  int64_t begin = start == nullptr ? 0 : expect_int(*start, "find");
  if (begin < 0) begin = std::max<int64_t>(begin + size, 0);
  if (begin > size) return -1;
  const Value bounds[3] = {start == nullptr ? none : *start, stop == nullptr ? none : *stop, none};
  const Value part = get_slice(budget, self, bounds);
  const size_t hit = last ? find_last(part.bytes(), needle) : find(part.bytes(), needle);
  if (hit == std::string_view::npos) return -1;
  return begin + static_cast<int64_t>(count_code_points(part.bytes().substr(0, hit)));
}

template <bool kLast, bool kMustExist>
Value position(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const int64_t at = position_of(budget, self, arguments, kLast);
  if (kMustExist && at < 0) throw Failure("substring not found");
  return Value::integer(at);
}

Value format(Budget& budget, const Value& self, ArgumentReader& arguments) {
  return format_braces(budget, self.text(), arguments.take_all());
}

Value count(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Text& needle = expect_text(arguments.require("sub"), "count");
  if (needle.bytes.empty()) return Value::integer(length_of(budget, self) + 1);
  budget.work(self.bytes().size());
  int64_t hits = 0;
  for (size_t at = find(self.bytes(), needle.bytes); at != std::string_view::npos;
       at = find(self.bytes(), needle.bytes, at + needle.bytes.size())) {
    budget.step();
    ++hits;
  }
  return Value::integer(hits);
}

bool is_category(uint32_t c, utf8proc_category_t first, utf8proc_category_t last) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= first && category <= last;
}
bool is_letter(uint32_t c) { return is_category(c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO); }
bool is_digit(uint32_t c) { return is_category(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND); }
bool is_letter_or_digit(uint32_t c) { return is_letter(c) || is_digit(c); }

template <bool (*kPredicate)(uint32_t)>
Value all_of(Budget& budget, const Value& self, ArgumentReader&) {
  budget.work(self.bytes().size());
  for (size_t at = 0; at < self.bytes().size();) {
    if (!kPredicate(next_code_point(self.bytes(), at))) return Value::boolean(false);
  }
  return Value::boolean(!self.bytes().empty());
}

template <bool kUpper>
Value has_case(Budget& budget, const Value& self, ArgumentReader&) {
  budget.work(self.bytes().size());
  bool found = false;
  for (size_t at = 0; at < self.bytes().size();) {
    const uint32_t c = next_code_point(self.bytes(), at);
    const bool upper = is_category(c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LU);
    const bool lower = is_category(c, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LL);
    if (is_category(c, UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LT) || (kUpper ? lower : upper)) {
      return Value::boolean(false);
    }
    found = found || (kUpper ? upper : lower);
  }
  return Value::boolean(found);
}

template <bool kFromRight>
Value partition(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Text& separator = expect_text(arguments.require("sep"), "partition");
  if (separator.bytes.empty()) throw Failure("empty separator");
  budget.work(self.bytes().size());
  const size_t at =
      kFromRight ? find_last(self.bytes(), separator.bytes) : find(self.bytes(), separator.bytes);
  const Value empty = Value::string("");
  if (at == std::string_view::npos) {
    return make_list(kFromRight ? std::vector<Value>{empty, empty, self}
                                : std::vector<Value>{self, empty, empty},
                     ListKind::kTuple);
  }
  const size_t behind = at + separator.bytes.size();
  return make_list({Value::string(substring(budget, self.text(), 0, at)),
                    Value::string(substring(budget, self.text(), at, behind)),
                    Value::string(substring(budget, self.text(), behind, self.bytes().size()))},
                   ListKind::kTuple);
}

template <bool kItems, bool kKeys>
Value dict_view(Budget& budget, const Value& self, ArgumentReader&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.entries().items) {
    budget.step();
    if (kItems) {
      items.push_back(make_list({key, value}, ListKind::kTuple));
    } else {
      items.push_back(kKeys ? key : value);
    }
  }
  return make_list(std::move(items), ListKind::kView);
}

Value dict_get(Budget&, const Value& self, ArgumentReader& arguments) {
  const Value& key = arguments.require("key");
  const Value* otherwise = arguments.next("default");
  if (const Value* found = self.entries().find(key)) return *found;
  return otherwise == nullptr ? Value::none() : *otherwise;
}

Value itself(Budget&, const Value& self, ArgumentReader&) { return self; }

Value list_index(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Value& wanted = arguments.require("value");
  const auto& items = self.items().items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equals(budget, items[i], wanted)) return Value::integer(static_cast<int64_t>(i));
  }
  throw Failure("the value is not in the list");
}

Value list_count(Budget& budget, const Value& self, ArgumentReader& arguments) {
  const Value& wanted = arguments.require("value");
  const auto& items = self.items().items;
  return Value::integer(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equals(budget, item, wanted); }));
}

Value refused(Budget&, const Value&, ArgumentReader&) {
  throw Failure("a template may not change lists or dicts in place");
}

Value not_supported(Budget&, const Value&, ArgumentReader&) {
  throw Failure("this string method is not supported");
}

constexpr NamedMethod kStringMethods[] = {{"strip", strip<Side::kBoth>},
                                          {"lstrip", strip<Side::kLeft>},
                                          {"rstrip", strip<Side::kRight>},
                                          {"split", split_text<Side::kLeft>},
                                          {"rsplit", split_text<Side::kRight>},
                                          {"splitlines", lines},
                                          {"startswith", affix_test<false>},
                                          {"endswith", affix_test<true>},
                                          {"removeprefix", remove_affix<false>},
                                          {"removesuffix", remove_affix<true>},
                                          {"upper", to_case<Case::kUpper>},
                                          {"lower", to_case<Case::kLower>},
                                          {"title", to_case<Case::kTitleMethod>},
                                          {"capitalize", to_case<Case::kCapitalize>},
                                          {"swapcase", to_case<Case::kSwap>},
                                          {"replace", replace_all},
                                          {"join", join},
                                          {"find", position<false, false>},
                                          {"rfind", position<true, false>},
                                          {"index", position<false, true>},
                                          {"rindex", position<true, true>},
                                          {"count", count},
                                          {"isdigit", all_of<is_digit>},
                                          {"isalpha", all_of<is_letter>},
                                          {"isalnum", all_of<is_letter_or_digit>},
                                          {"isspace", all_of<is_space>},
                                          {"isupper", has_case<true>},
                                          {"islower", has_case<false>},
                                          {"partition", partition<false>},
                                          {"rpartition", partition<true>},
                                          {"format", format},
                                          {"encode", not_supported},
                                          {"translate", not_supported},
                                          {"casefold", not_supported},
                                          {"center", not_supported},
                                          {"ljust", not_supported},
                                          {"rjust", not_supported},
                                          {"zfill", not_supported},
                                          {"expandtabs", not_supported}};

constexpr NamedMethod kDictMethods[] = {{"get", dict_get},
                                        {"items", dict_view<true, false>},
                                        {"keys", dict_view<false, true>},
                                        {"values", dict_view<false, false>},
                                        {"copy", itself},
                                        {"pop", refused},
                                        {"popitem", refused},
                                        {"update", refused},
                                        {"setdefault", refused},
                                        {"clear", refused}};

constexpr NamedMethod kListMethods[] = {{"index", list_index},
                                        {"count", list_count},
                                        {"copy", itself},
                                        {"append", refused},
                                        {"extend", refused},
                                        {"insert", refused},
                                        {"pop", refused},
                                        {"remove", refused},
                                        {"reverse", refused},
                                        {"sort", refused},
                                        {"clear", refused}};

const NamedMethod* look_up(const Value& value, std::string_view name) {
  if (value.is(Kind::kString)) return find_named(kStringMethods, name);
  if (value.is(Kind::kDict)) return find_named(kDictMethods, name);
  if (!value.is(Kind::kList)) return nullptr;
  const bool is_of_tuples = name == "index" || name == "count";
  const ListKind kind = value.items().kind;
  const bool has_methods = kind == ListKind::kList || (kind == ListKind::kTuple && is_of_tuples);
  return has_methods ? find_named(kListMethods, name) : nullptr;
}

}  // namespace

Value bound_method(const Value& receiver, std::string_view name) {
  return Value::callable({.type = Callable::Type::kMethod, .receiver = receiver, .name = name});
}

std::optional<Value> find_method(const Value& value, std::string_view name) {
  const NamedMethod* found = look_up(value, name);
  if (found == nullptr) return std::nullopt;
  return bound_method(value, found->name);
}

Value call_method(Budget& budget, const Callable& method, const Arguments& arguments) {
  const Value& self = method.receiver;
  if (self.is(Kind::kLoop)) {
    return call_loop_method(budget, self.loop_state(), method.name, arguments);
  }
  const NamedMethod* found = look_up(self, method.name);
  ArgumentReader reader(method.name, arguments);
  Value result = found->call(budget, self, reader);
  reader.finish();
  return result;
}

}  // namespace outrider::jinja
