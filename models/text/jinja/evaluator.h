// Runs a parsed template over the variables of one request. One Evaluator per rendering, one
// thread; the Program is shared and never changes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/text/jinja/ast.h"
#include "models/text/jinja/call.h"
#include "models/text/jinja/loop.h"

namespace outrider::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;
};

struct Macro {
  const MacroDefinition* definition;
  const Block* body;
  std::shared_ptr<Scope> scope;  // where it was defined
};

class Evaluator {
 public:
  // `inputs` must be a dict: the variables of the template. `clock`: see RenderLimits.
  Evaluator(const Program& program,
            Budget& budget,
            const Value& inputs,
            std::optional<int64_t> clock);

  // Throws Failure; line() then tells where.
  Text run();
  int line() const { return line_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class ScopeGuard;

  // jinja/statements.cpp
  Flow run_block(const Block& block);
  Flow run_statement(const Stmt& statement);
  Flow run_if(const Stmt& statement);
  Flow run_for(const Stmt& statement);
  Flow run_set_block(const Stmt& statement);
  void run_call_block(const Stmt& statement);
  Flow run_filter_block(const Stmt& statement);
  Flow run_with(const Stmt& statement);
  void output(const Value& value);
  std::shared_ptr<const List> loop_items(const Stmt& statement);
  void assign(const Target& target, const Value& value);
  void assign_name(int name, Value value);
  Flow capture(const Block& block, Text* text);
  Value define_macro(const Stmt& statement);
  Value filtered(Text text, const std::vector<Postfix>& filters);

  // jinja/expressions.cpp
  Value evaluate(const Expr& expr);
  Value evaluate_sequence(const Expr& expr);
  Value evaluate_dict(const Expr& expr);
  Value evaluate_logic(const Expr& expr);
  Value evaluate_compare(const Expr& expr);
  Value evaluate_arithmetic(const Expr& expr);
  Value evaluate_concatenation(const Expr& expr);
  Value evaluate_conditional(const Expr& expr);
  Value evaluate_postfix(const Expr& expr);
  Value apply_postfix(const Postfix& postfix, const Value& value);
  Value apply_slice(const Postfix& postfix, const Value& value);
  Value look_up(int name);
  Arguments evaluate_arguments(const CallArguments& arguments);

  // jinja/functions.cpp
  Value call(const Value& callee, const Arguments& arguments);
  Value call_builtin(Builtin builtin, const Arguments& arguments);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  void bind_parameters(const Macro& macro, const Arguments& arguments);
  void bind_extras(const Macro& macro, const Arguments& arguments, std::vector<bool> used);
  Value make_range(const Arguments& arguments);
  Value make_namespace(const Arguments& arguments);
  Value format_now(const Arguments& arguments);

  const Program& program_;
  Budget& budget_;
  std::optional<int64_t> clock_;
  std::shared_ptr<Scope> scope_;
  TextBuilder* out_ = nullptr;
  int line_ = 1;
  // Things that change and may be pointed to from anywhere; they live as long as the rendering.
  std::deque<Namespace> namespaces_;
  std::deque<LoopState> loops_;
  std::deque<Macro> macros_;
};

// A scope of its own while it lives.
class Evaluator::ScopeGuard {
 public:
  explicit ScopeGuard(Evaluator& evaluator, std::shared_ptr<Scope> parent = nullptr)
      : evaluator_(evaluator), outer_(std::move(evaluator.scope_)) {
    evaluator_.scope_ = std::make_shared<Scope>();
    evaluator_.scope_->parent = parent ? std::move(parent) : outer_;
  }
  ~ScopeGuard() { evaluator_.scope_ = std::move(outer_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

}  // namespace outrider::jinja
