// value.name, value[index] and value[a:b:c]. Only data and the methods of our own tables can be
// reached: there are no host objects behind the values.
#include <algorithm>

#include "models/text/jinja/loop.h"
#include "models/text/jinja/operators.h"

namespace outrider::jinja {

namespace {

Value absent(const Value& value, std::string_view name) {
  const std::string owner(type_name(value));
  return Value::undefined("'" + owner + " object' has no attribute '" + std::string(name) + "'");
}

Value namespace_attribute(const Value& value, std::string_view name) {
  for (const auto& [key, item] : value.name_space().attributes) {
    if (key == name) return item;
  }
  return absent(value, name);
}

Value list_item(const List& list, int64_t index, const Value& owner) {
  const auto size = static_cast<int64_t>(list.items.size());
  const int64_t at = index < 0 ? index + size : index;
  const bool indexable = list.kind != ListKind::kGenerator && list.kind != ListKind::kView;
  if (!indexable || at < 0 || at >= size) return absent(owner, std::to_string(index));
  return list.items[static_cast<size_t>(at)];
}

Value string_item(Budget& budget, const Value& value, int64_t index) {
  const int64_t size = length_of(budget, value);
  const int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) return absent(value, std::to_string(index));
  const size_t begin = byte_offset(value.bytes(), static_cast<size_t>(at));
  size_t end = begin;
  next_code_point(value.bytes(), end);
  return Value::string(substring(budget, value.text(), begin, end));
}

struct Range {
  int64_t start, stop, step;
};

Range resolve(const Value (&bounds)[3], int64_t size) {
  const auto bound = [&](int i, int64_t otherwise) {
    const Value& value = bounds[i];
    return value.is(Kind::kNone) ? otherwise : expect_int(value, "a slice");
  };
  Range range{0, 0, bound(2, 1)};
  if (range.step == 0) throw Failure("a slice has step zero");
  const bool forward = range.step > 0;
  // A step beyond the size visits one element whatever it is; kept small so that sums cannot
  // overflow.
  range.step = std::clamp<int64_t>(range.step, -size - 1, size + 1);
  const auto place = [&](int64_t at) {
    if (at < 0) at = at < -size ? -1 : at + size;
    return forward ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  range.start = bounds[0].is(Kind::kNone) ? (forward ? 0 : size - 1) : place(bound(0, 0));
  range.stop = bounds[1].is(Kind::kNone) ? (forward ? size : -1) : place(bound(1, 0));
  return range;
}

Value slice_string(Budget& budget, const Value& value, const Range& range) {
  const std::string_view bytes = value.bytes();
  budget.work(bytes.size());
  if (range.step == 1) {
    const size_t begin = byte_offset(bytes, static_cast<size_t>(range.start));
    const auto length = static_cast<size_t>(std::max<int64_t>(range.stop - range.start, 0));
    const size_t end = begin + byte_offset(bytes.substr(begin), length);
    return Value::string(substring(budget, value.text(), begin, end));
  }
  std::vector<size_t> starts;
  for (size_t at = 0; at < bytes.size(); next_code_point(bytes, at)) starts.push_back(at);
  starts.push_back(bytes.size());
  TextBuilder builder(budget);
  for (int64_t at = range.start; range.step > 0 ? at < range.stop : at > range.stop;
       at += range.step) {
    budget.step();
    const auto i = static_cast<size_t>(at);
    builder.append(value.text(), starts[i], starts[i + 1]);
  }
  return Value::string(builder.take());
}

}  // namespace

Value get_attribute(const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) fail_type("an attribute", value);
  if (value.is(Kind::kNamespace)) return namespace_attribute(value, name);
  if (value.is(Kind::kLoop)) return loop_attribute(value, name);
  if (const auto method = find_method(value, name)) return *method;
  if (value.is(Kind::kDict)) {
    if (const Value* found = value.entries().find(name)) return *found;
  }
  return absent(value, name);
}

Value get_item(Budget& budget, const Value& value, const Value& index) {
  if (value.is(Kind::kUndefined)) fail_type("an index", value);
  if (value.is(Kind::kDict)) {
    const bool hashable = !index.is(Kind::kDict) &&
                          !(index.is(Kind::kList) && index.items().kind != ListKind::kTuple);
    if (hashable) {
      if (const Value* found = value.entries().find(index)) return *found;
    }
  }
  if (index.is_integral()) {
    if (value.is(Kind::kList)) return list_item(value.items(), index.as_int(), value);
    if (value.is(Kind::kString)) return string_item(budget, value, index.as_int());
  }
  if (index.is(Kind::kString)) return get_attribute(value, index.bytes());
  return absent(value, "[...]");
}

Value get_slice(Budget& budget, const Value& value, const Value (&bounds)[3]) {
  if (value.is(Kind::kString)) {
    return slice_string(budget, value, resolve(bounds, length_of(budget, value)));
  }
  const bool sliceable = value.is(Kind::kList) && value.items().kind != ListKind::kGenerator &&
                         value.items().kind != ListKind::kView;
  if (!sliceable) fail_type("a slice", value);
  const auto& items = value.items().items;
  const Range range = resolve(bounds, static_cast<int64_t>(items.size()));
  std::vector<Value> result;
  for (int64_t at = range.start; range.step > 0 ? at < range.stop : at > range.stop;
       at += range.step) {
    budget.step();
    result.push_back(items[static_cast<size_t>(at)]);
  }
  return make_list(std::move(result), value.items().kind);
}

}  // namespace outrider::jinja
