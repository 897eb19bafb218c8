// Filters on sequences and dicts.
#include <algorithm>
#include <optional>

#include "models/text/jinja/filters.h"
#include "models/text/jinja/operators.h"

namespace outrider::jinja {

namespace {

// "a.b.0": what `attribute=` of a filter reaches in each element.
class AttributePath {
 public:
  AttributePath(Budget& budget, const Value* attribute) : budget_(budget) {
    if (attribute == nullptr || attribute->is(Kind::kNone)) return;
    if (attribute->is_integral()) {
      parts_.push_back(*attribute);
      return;
    }
    const Text& path = expect_text(*attribute, "attribute");
    const Text dot{".", {}};
    for (Text& part : split(budget, path, &dot, -1, Side::kLeft))
      parts_.push_back(part_of(std::move(part)));
  }

  // otherwise: of each part that is undefined; null: it stays so.
  Value read(const Value& item, const Value* otherwise = nullptr) const {
    Value value = item;
    for (const Value& part : parts_) {
      budget_.step();
      value = get_item(budget_, value, part);
      if (otherwise != nullptr && value.is(Kind::kUndefined)) value = *otherwise;
    }
    return value;
  }

 private:
  static Value part_of(Text part) {
    const bool digits = !part.bytes.empty() && part.bytes.size() < 18 &&
                        part.bytes.find_first_not_of("0123456789") == std::string::npos;
    return digits ? Value::integer(std::stoll(part.bytes)) : Value::string(std::move(part));
  }

  Budget& budget_;
  std::vector<Value> parts_;
};

Value folded(Budget& budget, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::kString)) return value;
  return Value::string(change_case(budget, value.text(), Case::kLower));
}

int order(Budget& budget, const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is(Kind::kUndefined)) fail_type("sorting", *side);
  }
  return compare(budget, left, right);
}

Value length(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("length", arguments).finish();
  return Value::integer(length_of(budget, value));
}

Value join(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("join", arguments);
  const Value* separator = reader.next("d");
  const AttributePath path(budget, reader.next("attribute"));
  reader.finish();
  const Text between = separator == nullptr ? Text() : to_text(budget, *separator);
  const auto items = iterate(budget, value);
  TextBuilder builder(budget);
  for (size_t i = 0; i < items->items.size(); ++i) {
    budget.step();
    if (i > 0) builder.append(between);
    append_string(budget, builder, path.read(items->items[i]));
  }
  return Value::string(builder.take());
}

Value first(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("first", arguments).finish();
  const auto items = iterate(budget, value);
  return items->items.empty() ? Value::undefined("no first item, the sequence is empty")
                              : items->items.front();
}

Value last(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("last", arguments).finish();
  const auto items = iterate(budget, value);
  return items->items.empty() ? Value::undefined("no last item, the sequence is empty")
                              : items->items.back();
}

Value to_list(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("list", arguments).finish();
  auto items = iterate(budget, value);
  if (items->kind == ListKind::kList) return Value::list(std::move(items));
  budget.step(static_cast<int64_t>(items->items.size()));
  return make_list(items->items);
}

Value items_of(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("items", arguments).finish();
  std::vector<Value> pairs;
  if (!value.is(Kind::kUndefined)) {
    if (!value.is(Kind::kDict)) fail_type("items", value);
    for (const auto& [key, item] : value.entries().items) {
      budget.step();
      pairs.push_back(make_list({key, item}, ListKind::kTuple));
    }
  }
  return make_list(std::move(pairs), ListKind::kGenerator);
}

// Jinja's map and select look at their input only when it is true, so none passes as empty.
std::shared_ptr<const List> iterate_if_true(Budget& budget, const Value& value) {
  return iterate(budget, is_true(value) ? value : Value());
}

Value map(Budget& budget, const Value& value, const Arguments& arguments) {
  const auto items = iterate_if_true(budget, value);
  if (items->items.empty()) return make_list({}, ListKind::kGenerator);
  std::vector<Value> results;
  if (arguments.positional.empty()) {
    ArgumentReader reader("map", arguments);
    const AttributePath path(budget, &reader.require("attribute"));
    const Value* otherwise = reader.next("default");
    reader.finish();
    for (const Value& item : items->items) {
      budget.step();
      results.push_back(path.read(item, otherwise));
    }
    return make_list(std::move(results), ListKind::kGenerator);
  }
  const std::string name = expect_text(arguments.positional[0], "map").bytes;
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : items->items) results.push_back(apply_filter(budget, name, item, rest));
  return make_list(std::move(results), ListKind::kGenerator);
}

// select, reject, selectattr, rejectattr in one: what to test, and which answer keeps an element.
template <bool kByAttribute, bool kKeep>
Value select(Budget& budget, const Value& value, const Arguments& arguments) {
  const auto items = iterate_if_true(budget, value);
  if (items->items.empty()) return make_list({}, ListKind::kGenerator);
  std::optional<AttributePath> path;
  if (kByAttribute) {
    if (arguments.positional.empty()) throw Failure("selectattr and rejectattr need an attribute");
    path.emplace(budget, &arguments.positional[0]);
  }
  const size_t test_at = kByAttribute ? 1 : 0;
  std::string test;
  Arguments rest = arguments;
  if (arguments.positional.size() > test_at) {
    test = expect_text(arguments.positional[test_at], "select").bytes;
    rest.positional.erase(rest.positional.begin(),
                          rest.positional.begin() + static_cast<std::ptrdiff_t>(test_at) + 1);
  }
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    budget.step();
    const Value tested = path ? path->read(item) : item;
    const bool passed = test.empty() ? is_true(tested) : apply_test(budget, test, tested, rest);
    if (passed == kKeep) kept.push_back(item);
  }
  return make_list(std::move(kept), ListKind::kGenerator);
}

Value sort(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("sort", arguments);
  const bool descending = reader.next_bool("reverse", false);
  const bool case_sensitive = reader.next_bool("case_sensitive", false);
  const Value* attribute = reader.next("attribute");
  reader.finish();
  std::vector<AttributePath> paths;
  if (attribute != nullptr && attribute->is(Kind::kString)) {
    const Text comma{",", {}};
    for (Text& part : split(budget, attribute->text(), &comma, -1, Side::kLeft)) {
      const Value path = Value::string(std::move(part));
      paths.emplace_back(budget, &path);
    }
  } else {
    paths.emplace_back(budget, attribute);
  }
  struct Keyed {
    std::vector<Value> keys;
    Value item;
  };
  std::vector<Keyed> keyed;
  const auto items = iterate(budget, value);
  for (const Value& item : items->items) {
    Keyed entry{{}, item};
    for (const AttributePath& path : paths) {
      budget.step();
      entry.keys.push_back(folded(budget, path.read(item), case_sensitive));
    }
    keyed.push_back(std::move(entry));
  }
  const auto before = [&](const Keyed& left, const Keyed& right) {
    for (size_t i = 0; i < left.keys.size(); ++i) {
      // Keys by attribute are compared as lists, and those only order elements that differ.
      const bool both_absent =
          left.keys[i].is(Kind::kUndefined) && right.keys[i].is(Kind::kUndefined);
      if (attribute != nullptr && both_absent) continue;
      const int ordered = order(budget, left.keys[i], right.keys[i]);
      if (ordered != 0) return descending ? ordered > 0 : ordered < 0;
    }
    return false;
  };
  std::stable_sort(keyed.begin(), keyed.end(), before);
  std::vector<Value> sorted;
  for (Keyed& entry : keyed) sorted.push_back(std::move(entry.item));
  return make_list(std::move(sorted));
}

Value unique(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("unique", arguments);
  const bool case_sensitive = reader.next_bool("case_sensitive", false);
  const AttributePath path(budget, reader.next("attribute"));
  reader.finish();
  Dict seen;
  std::vector<Value> kept;
  const auto items = iterate(budget, value);
  for (const Value& item : items->items) {
    budget.step();
    const Value key = folded(budget, path.read(item), case_sensitive);
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value::none());
    kept.push_back(item);
  }
  return make_list(std::move(kept), ListKind::kGenerator);
}

template <bool kGreatest>
Value extreme(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(kGreatest ? "max" : "min", arguments);
  const bool case_sensitive = reader.next_bool("case_sensitive", false);
  const AttributePath path(budget, reader.next("attribute"));
  reader.finish();
  const auto items = iterate(budget, value);
  if (items->items.empty()) return Value::undefined("no aggregated item, the sequence is empty");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items->items) {
    budget.step();
    Value key = folded(budget, path.read(item), case_sensitive);
    if (best != nullptr) {
      const int ordered = order(budget, key, best_key);
      if (kGreatest ? ordered <= 0 : ordered >= 0) continue;
    }
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

Value sum(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("sum", arguments);
  const AttributePath path(budget, reader.next("attribute"));
  const Value* start = reader.next("start");
  reader.finish();
  Value total = start == nullptr ? Value::integer(0) : *start;
  if (total.is(Kind::kString)) fail_type("sum", total);
  const auto items = iterate(budget, value);
  for (const Value& item : items->items) {
    total = arithmetic(budget, Operator::kAdd, total, path.read(item));
  }
  return total;
}

Value reverse(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader("reverse", arguments).finish();
  if (value.is(Kind::kString)) {
    const Value none = Value::none();
    const Value bounds[3] = {none, none, Value::integer(-1)};
    return get_slice(budget, value, bounds);
  }
  const auto items = iterate(budget, value);
  budget.step(static_cast<int64_t>(items->items.size()));
  return make_list(std::vector<Value>(items->items.rbegin(), items->items.rend()),
                   ListKind::kGenerator);
}

Value batch(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("batch", arguments);
  const int64_t count = expect_int(reader.require("linecount"), "batch");
  const Value* filler = reader.next("fill_with");
  reader.finish();
  if (count < 1 || count > kMaxRange) throw Failure("batch takes 1 to 10000 items a line");
  std::vector<Value> lines, line;
  const auto items = iterate(budget, value);
  for (const Value& item : items->items) {
    budget.step();
    if (static_cast<int64_t>(line.size()) == count) {
      lines.push_back(make_list(std::move(line)));
      line.clear();
    }
    line.push_back(item);
  }
  if (!line.empty()) {
    const bool fills = filler != nullptr && !filler->is(Kind::kNone);
    while (fills && static_cast<int64_t>(line.size()) < count) {
      budget.step();
      line.push_back(*filler);
    }
    lines.push_back(make_list(std::move(line)));
  }
  return make_list(std::move(lines), ListKind::kGenerator);
}

Value dict_sort(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("dictsort", arguments);
  const bool case_sensitive = reader.next_bool("case_sensitive", false);
  const Text* by = reader.next_text("by");
  const bool descending = reader.next_bool("reverse", false);
  reader.finish();
  const std::string_view field = by == nullptr ? "key" : std::string_view(by->bytes);
  if (field != "key" && field != "value") throw Failure("dictsort sorts by 'key' or by 'value'");
  if (!value.is(Kind::kDict)) fail_type("dictsort", value);
  std::vector<std::pair<Value, Value>> keyed;  // sort key, (key, value)
  for (const auto& [key, item] : value.entries().items) {
    budget.step();
    keyed.emplace_back(folded(budget, field == "key" ? key : item, case_sensitive),
                       make_list({key, item}, ListKind::kTuple));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& left, const auto& right) {
    const int ordered = order(budget, left.first, right.first);
    return descending ? ordered > 0 : ordered < 0;
  });
  std::vector<Value> sorted;
  for (auto& entry : keyed) sorted.push_back(std::move(entry.second));
  return make_list(std::move(sorted));
}

Value attribute(Budget&, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("attr", arguments);
  const Text& name = expect_text(reader.require("name"), "attr");
  reader.finish();
  if (value.is(Kind::kUndefined)) fail_type("attr", value);
  if (const auto method = find_method(value, name.bytes)) return *method;
  if (value.is(Kind::kNamespace) || value.is(Kind::kLoop)) return get_attribute(value, name.bytes);
  return Value::undefined("there is no attribute '" + name.bytes + "'");
}

constexpr NamedFilter kFilters[] = {{"length", length},
                                    {"count", length},
                                    {"join", join},
                                    {"first", first},
                                    {"last", last},
                                    {"list", to_list},
                                    {"items", items_of},
                                    {"map", map},
                                    {"select", select<false, true>},
                                    {"reject", select<false, false>},
                                    {"selectattr", select<true, true>},
                                    {"rejectattr", select<true, false>},
                                    {"sort", sort},
                                    {"unique", unique},
                                    {"min", extreme<false>},
                                    {"max", extreme<true>},
                                    {"sum", sum},
                                    {"reverse", reverse},
                                    {"batch", batch},
                                    {"dictsort", dict_sort},
                                    {"attr", attribute}};

}  // namespace

const NamedFilter* find_sequence_filter(std::string_view name) {
  return find_named(kFilters, name);
}

}  // namespace outrider::jinja
