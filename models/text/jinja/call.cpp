// Reading arguments.
#include "models/text/jinja/call.h"

#include <fmt/core.h>

namespace outrider::jinja {

const Value* ArgumentReader::next(std::string_view parameter) {
  const Value* found = nullptr;
  for (const auto& [name, value] : arguments_.named) {
    if (name.bytes == parameter) {
      found = &value;
      ++named_used_;
    }
  }
  if (position_ >= arguments_.positional.size()) return found;
  if (found != nullptr) throw Failure(fmt::format("{} got '{}' twice", callee_, parameter));
  return &arguments_.positional[position_++];
}

const Value& ArgumentReader::require(std::string_view parameter) {
  const Value* value = next(parameter);
  if (value == nullptr)
    throw Failure(fmt::format("{} needs the argument '{}'", callee_, parameter));
  return *value;
}

bool ArgumentReader::next_bool(std::string_view parameter, bool otherwise) {
  const Value* value = next(parameter);
  return value == nullptr ? otherwise : is_true(*value);
}

int64_t ArgumentReader::next_int(std::string_view parameter, int64_t otherwise) {
  const Value* value = next(parameter);
  return value == nullptr || value->is(Kind::kNone) ? otherwise : expect_int(*value, callee_);
}

const Text* ArgumentReader::next_text(std::string_view parameter) {
  const Value* value = next(parameter);
  return value == nullptr || value->is(Kind::kNone) ? nullptr : &expect_text(*value, callee_);
}

const Arguments& ArgumentReader::take_all() {
  position_ = arguments_.positional.size();
  named_used_ = arguments_.named.size();
  return arguments_;
}

void ArgumentReader::finish() const {
  if (position_ < arguments_.positional.size()) {
    throw Failure(fmt::format("{} got too many arguments", callee_));
  }
  if (named_used_ < arguments_.named.size()) {
    throw Failure(fmt::format("{} got an argument it does not know", callee_));
  }
}

const Text& expect_text(const Value& value, std::string_view callee) {
  if (!value.is(Kind::kString)) fail_type(callee, value);
  return value.text();
}

int64_t expect_int(const Value& value, std::string_view callee) {
  if (!value.is_integral()) fail_type(callee, value);
  return value.as_int();
}

void fail_type(std::string_view callee, const Value& value) {
  if (value.is(Kind::kUndefined)) {
    throw Failure(value.note() != nullptr ? *value.note() : "a value is undefined");
  }
  throw Failure(fmt::format("{} cannot work with a value of type '{}'", callee, type_name(value)));
}

}  // namespace outrider::jinja
