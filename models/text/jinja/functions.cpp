// Calls: macros and the functions Hugging Face gives to every template.
#include <fmt/core.h>

#include <algorithm>
#include <ctime>

#include "models/text/jinja/evaluator.h"
#include "models/text/jinja/operators.h"
#include "models/text/tokenizer/unicode.h"

namespace outrider::jinja {

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  const DepthGuard guard(budget_);
  budget_.step();
  if (!callee.is(Kind::kCallable)) fail_type("a call", callee);
  const Callable& function = callee.function();
  switch (function.type) {
    case Callable::Type::kMethod:
      return call_method(budget_, function, arguments);
    case Callable::Type::kMacro:
      return call_macro(*function.macro, arguments);
    case Callable::Type::kBuiltin:
      break;
  }
  return call_builtin(function.builtin, arguments);
}

Value Evaluator::call_builtin(Builtin builtin, const Arguments& arguments) {
  switch (builtin) {
    case Builtin::kRange:
      return make_range(arguments);
    case Builtin::kNamespace:
      return make_namespace(arguments);
    case Builtin::kStrftimeNow:
      return format_now(arguments);
    case Builtin::kRaiseException: {
      ArgumentReader reader("raise_exception", arguments);
      const Text message = to_text(budget_, reader.require("message"));
      reader.finish();
      throw Failure(message.bytes);
    }
    case Builtin::kDict:
      break;
  }
  Dict dict;
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (arguments.positional.size() > 1 || !from.is(Kind::kDict)) fail_type("dict", from);
    budget_.step(static_cast<int64_t>(from.entries().items.size()));
    dict = from.entries();
  }
  for (const auto& [name, value] : arguments.named) dict.set(Value::string(name), value);
  return Value::dict(std::move(dict));
}

Value Evaluator::make_range(const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) {
    throw Failure("range takes one to three numbers");
  }
  const int64_t first = expect_int(given[0], "range");
  const int64_t start = given.size() > 1 ? first : 0;
  const int64_t stop = given.size() > 1 ? expect_int(given[1], "range") : first;
  const int64_t step = given.size() > 2 ? expect_int(given[2], "range") : 1;
  if (step == 0) throw Failure("range has step zero");
  std::vector<Value> items;
  int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    budget_.step();
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      throw Failure(fmt::format("range has more than {} numbers", kMaxRange));
    }
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return make_list(std::move(items), ListKind::kRange);
}

Value Evaluator::make_namespace(const Arguments& arguments) {
  Namespace space;
  const auto add = [&](const std::string& name, const Value& value) {
    budget_.step();
    space.set(name, value);
  };
  if (arguments.positional.size() > 1) throw Failure("namespace takes at most one dict");
  for (const Value& from : arguments.positional) {
    if (!from.is(Kind::kDict) || from.entries().items.size() > 1000) fail_type("namespace", from);
    for (const auto& [key, value] : from.entries().items) {
      add(expect_text(key, "namespace").bytes, value);
    }
  }
  for (const auto& [name, value] : arguments.named) add(name.bytes, value);
  namespaces_.push_back(std::move(space));
  return Value::space(&namespaces_.back());
}

Value Evaluator::format_now(const Arguments& arguments) {
  ArgumentReader reader("strftime_now", arguments);
  const std::string format = expect_text(reader.require("format"), "strftime_now").bytes;
  reader.finish();
  if (format.size() > 256) throw Failure("strftime_now takes a format of at most 256 bytes");
  if (format.empty()) return Value::string("");
  const std::time_t now = clock_ ? static_cast<std::time_t>(*clock_) : std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string buffer(8192, '\0');
  buffer.resize(std::strftime(buffer.data(), buffer.size(), format.c_str(), &local));
  if (!unicode::is_valid_utf8(buffer))
    throw Failure("strftime_now made text that is not valid UTF-8");
  return Value::string(buffer);
}

void Evaluator::bind_parameters(const Macro& macro, const Arguments& arguments) {
  const MacroDefinition& definition = *macro.definition;
  const size_t count = definition.parameters.size();
  const size_t first_default = count - definition.defaults.size();
  std::vector<bool> used(arguments.named.size(), false);
  for (size_t i = 0; i < count; ++i) {
    budget_.step();
    const std::string& name = program_.names[static_cast<size_t>(definition.parameters[i])];
    const auto named =
        std::find_if(arguments.named.begin(), arguments.named.end(), [&](const auto& argument) {
          return argument.first.bytes == name;
        });
    if (i < arguments.positional.size()) {
      assign_name(definition.parameters[i], arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      used[static_cast<size_t>(named - arguments.named.begin())] = true;
      assign_name(definition.parameters[i], named->second);
    } else if (i >= first_default) {
      assign_name(definition.parameters[i], evaluate(definition.defaults[i - first_default]));
    } else {
      assign_name(definition.parameters[i],
                  Value::undefined("parameter '" + name + "' was not provided"));
    }
  }
  bind_extras(macro, arguments, std::move(used));
}

// caller, kwargs and varargs: bound when the body mentions them, refused otherwise.
void Evaluator::bind_extras(const Macro& macro,
                            const Arguments& arguments,
                            std::vector<bool> used) {
  const MacroDefinition& definition = *macro.definition;
  Value caller = Value::undefined("no caller defined");
  Dict rest;
  for (size_t i = 0; i < arguments.named.size(); ++i) {
    if (used[i]) continue;
    const auto& [name, value] = arguments.named[i];
    if (definition.caller_name >= 0 && name.bytes == "caller") {
      caller = value;
    } else if (definition.kwargs_name >= 0) {
      rest.set(Value::string(name), value);
    } else {
      throw Failure("macro '" + definition.name + "' takes no argument named '" + name.bytes + "'");
    }
  }
  const auto& parameters = definition.parameters;
  const bool named_caller = std::ranges::count(parameters, definition.caller_name) > 0;
  if (definition.caller_name >= 0 && !named_caller) assign_name(definition.caller_name, caller);
  if (definition.kwargs_name >= 0)
    assign_name(definition.kwargs_name, Value::dict(std::move(rest)));
  const size_t count = parameters.size();
  const auto& given = arguments.positional;
  if (definition.varargs_name >= 0) {
    std::vector<Value> extra;
    if (given.size() > count) {
      extra.assign(given.begin() + static_cast<std::ptrdiff_t>(count), given.end());
    }
    assign_name(definition.varargs_name, make_list(std::move(extra), ListKind::kTuple));
  } else if (given.size() > count) {
    throw Failure(
        fmt::format("macro '{}' takes not more than {} arguments", definition.name, count));
  }
}

Value Evaluator::call_macro(const Macro& macro, const Arguments& arguments) {
  const ScopeGuard scope(*this, macro.scope);
  bind_parameters(macro, arguments);
  Text text;
  capture(*macro.body, &text);  // no loop reaches into a macro
  return Value::string(std::move(text));
}

}  // namespace outrider::jinja
