// Statements: output, set, for, if, macro, call, filter, with.
#include "models/text/jinja/evaluator.h"
#include "models/text/jinja/operators.h"

namespace outrider::jinja {

namespace {

constexpr std::pair<std::string_view, Builtin> kBuiltins[] = {
    {"range", Builtin::kRange},
    {"namespace", Builtin::kNamespace},
    {"dict", Builtin::kDict},
    {"raise_exception", Builtin::kRaiseException},
    {"strftime_now", Builtin::kStrftimeNow}};

}  // namespace

Evaluator::Evaluator(const Program& program,
                     Budget& budget,
                     const Value& inputs,
                     std::optional<int64_t> clock)
    : program_(program), budget_(budget), clock_(clock), scope_(std::make_shared<Scope>()) {
  for (size_t i = 0; i < program.names.size(); ++i) {
    const std::string& name = program.names[i];
    const int id = static_cast<int>(i);
    if (const Value* input = inputs.entries().find(name)) {
      scope_->variables.emplace_back(id, *input);
      continue;
    }
    for (const auto& [builtin_name, builtin] : kBuiltins) {
      if (name != builtin_name) continue;
      scope_->variables.emplace_back(id, Value::callable({.builtin = builtin}));
    }
  }
}

Text Evaluator::run() {
  const ScopeGuard scope(*this);
  Text text;
  capture(program_.body, &text);
  return text;
}

Evaluator::Flow Evaluator::capture(const Block& block, Text* text) {
  TextBuilder builder(budget_);
  TextBuilder* const outer = std::exchange(out_, &builder);
  // Restored by hand on the good way only: after a Failure nobody writes any more.
  const Flow flow = run_block(block);
  out_ = outer;
  *text = builder.take();
  return flow;
}

Evaluator::Flow Evaluator::run_block(const Block& block) {
  const DepthGuard guard(budget_);
  for (const Stmt& statement : block) {
    const Flow flow = run_statement(statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_statement(const Stmt& statement) {
  budget_.step();
  line_ = statement.line;
  switch (statement.kind) {
    case StmtKind::kText:
      out_->append(statement.text);
      break;
    case StmtKind::kOutput:
      for (const Expr& expr : statement.expressions) output(evaluate(expr));
      break;
    case StmtKind::kSet:
      assign(statement.targets[0], evaluate(statement.expressions[0]));
      break;
    case StmtKind::kSetBlock:
      return run_set_block(statement);
    case StmtKind::kFor:
      return run_for(statement);
    case StmtKind::kIf:
      return run_if(statement);
    case StmtKind::kMacro:
      assign_name(statement.name, define_macro(statement));
      break;
    case StmtKind::kCallBlock:
      run_call_block(statement);
      break;
    case StmtKind::kFilterBlock:
      return run_filter_block(statement);
    case StmtKind::kWith:
      return run_with(statement);
    case StmtKind::kScope: {
      const ScopeGuard scope(*this);
      return run_block(statement.body);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Evaluator::output(const Value& value) { append_string(budget_, *out_, value); }

Evaluator::Flow Evaluator::run_if(const Stmt& statement) {
  for (const Branch& branch : statement.branches) {
    if (is_true(evaluate(branch.condition))) return run_block(branch.body);
  }
  return run_block(statement.otherwise);
}

std::shared_ptr<const List> Evaluator::loop_items(const Stmt& statement) {
  const Value iterable = evaluate(statement.expressions[0]);
  auto items = iterate(budget_, iterable);
  if (!statement.condition) return items;
  std::vector<Value> kept;
  const ScopeGuard scope(*this);
  for (const Value& item : items->items) {
    budget_.step();
    assign(statement.targets[0], item);
    if (is_true(evaluate(*statement.condition))) kept.push_back(item);
  }
  return make_list(std::move(kept)).shared_items();
}

Evaluator::Flow Evaluator::run_for(const Stmt& statement) {
  LoopState& loop = loops_.emplace_back();
  loop.items = loop_items(statement);
  const size_t size = loop.items->items.size();
  for (size_t i = 0; i < size; ++i) {
    budget_.step();
    loop.index = i;
    const ScopeGuard scope(*this);
    assign(statement.targets[0], loop.items->items[i]);
    assign_name(statement.name, Value::loop(&loop));
    if (run_block(statement.body) == Flow::kBreak) return Flow::kNext;
  }
  if (size > 0 || statement.otherwise.empty()) return Flow::kNext;
  const ScopeGuard scope(*this);
  return run_block(statement.otherwise);
}

void Evaluator::assign_name(int name, Value value) {
  for (auto& [held, old] : scope_->variables) {
    if (held == name) {
      old = std::move(value);
      return;
    }
  }
  scope_->variables.emplace_back(name, std::move(value));
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (!target.elements.empty()) {
    const auto items = iterate(budget_, value);
    if (items->items.size() != target.elements.size()) {
      throw Failure("cannot unpack " + std::to_string(items->items.size()) + " values into " +
                    std::to_string(target.elements.size()) + " names");
    }
    for (size_t i = 0; i < target.elements.size(); ++i) {
      budget_.step();
      assign(target.elements[i], items->items[i]);
    }
    return;
  }
  if (target.attribute.empty()) return assign_name(target.name, value);
  const Value space = look_up(target.name);
  if (!space.is(Kind::kNamespace)) throw Failure("an attribute can only be set on a namespace");
  space.name_space().set(target.attribute, value);
}

Value Evaluator::filtered(Text text, const std::vector<Postfix>& filters) {
  Value value = Value::string(std::move(text));
  for (const Postfix& filter : filters) value = apply_postfix(filter, value);
  return value;
}

// A loop that is left in the middle of the block leaves its text.
Evaluator::Flow Evaluator::run_set_block(const Stmt& statement) {
  Text text;
  {
    const ScopeGuard scope(*this);
    const Flow flow = capture(statement.body, &text);
    if (flow != Flow::kNext) return flow;
  }
  assign(statement.targets[0], filtered(std::move(text), statement.filters));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_filter_block(const Stmt& statement) {
  const ScopeGuard scope(*this);
  Text text;
  const Flow flow = capture(statement.body, &text);
  if (flow != Flow::kNext) return flow;
  output(filtered(std::move(text), statement.filters));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_with(const Stmt& statement) {
  std::vector<Value> values;  // all evaluated outside the new scope
  for (const Expr& expr : statement.expressions) values.push_back(evaluate(expr));
  const ScopeGuard scope(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(statement.targets[i], values[i]);
  return run_block(statement.body);
}

Value Evaluator::define_macro(const Stmt& statement) {
  macros_.push_back({&statement.macro, &statement.body, scope_});
  return Value::callable({.type = Callable::Type::kMacro, .macro = &macros_.back()});
}

void Evaluator::run_call_block(const Stmt& statement) {
  // The call is the last step of the expression's chain; the block comes along as `caller`.
  const Expr& expr = statement.expressions[0];
  Value callee = evaluate(expr.operands[0]);
  for (size_t i = 0; i + 1 < expr.postfixes.size(); ++i) {
    callee = apply_postfix(expr.postfixes[i], callee);
  }
  Arguments arguments = evaluate_arguments(expr.postfixes.back().arguments);
  arguments.named.emplace_back(Text{"caller", {}}, define_macro(statement));
  output(call(callee, arguments));
}

}  // namespace outrider::jinja
