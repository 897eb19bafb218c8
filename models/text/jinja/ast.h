// What the parser makes and the evaluator walks. Chains (a + b + c, x.y[0]|trim, elif after elif)
// are flat vectors, so the depth of a tree is the nesting of the source, which the parser limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/text/jinja/value.h"

namespace outrider::jinja {

inline constexpr int kMaxNesting = 64;  // brackets, blocks and operators that nest

enum class ExprKind : uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,  // operands: key, value, key, value ...
  kOr,
  kAnd,
  kNot,
  kCompare,      // operands[0] operators[0] operands[1] ..., Python's chained comparison
  kArithmetic,   // the same, left to right
  kConcatenate,  // ~
  kNegative,
  kPositive,
  kConditional,  // operands: condition, then, else (maybe absent)
  kPostfix       // operands[0] followed by postfixes
};

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expr;
struct NamedArgument;

struct CallArguments {
  std::vector<Expr> positional;
  std::vector<NamedArgument> named;
  std::vector<Expr> star;         // *list: none or one
  std::vector<Expr> double_star;  // **dict: none or one
};

enum class PostfixKind : uint8_t { kAttribute, kItem, kSlice, kCall, kFilter, kTest };

struct Postfix {
  PostfixKind kind = PostfixKind::kAttribute;
  int line = 1;
  std::string name;                         // attribute, filter or test
  CallArguments arguments;                  // call, filter, test
  std::vector<Expr> index;                  // item: the index
  std::vector<std::optional<Expr>> bounds;  // slice: start, stop, step
  bool negated = false;                     // test: is not
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int name = -1;  // index into Program::names
  Value constant;
  std::vector<Expr> operands;
  std::vector<Operator> operators;
  std::vector<Postfix> postfixes;
};

struct NamedArgument {
  std::string name;
  Expr value;
};

struct Target {
  int name = -1;
  std::string attribute;         // set namespace.attribute
  std::vector<Target> elements;  // tuple when not empty
};

enum class StmtKind : uint8_t {
  kText,
  kOutput,
  kSet,
  kSetBlock,
  kFor,
  kIf,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,  // generation: a body of its own scope
  kBreak,
  kContinue
};

struct Stmt;
using Block = std::vector<Stmt>;

struct Branch {
  Expr condition;
  Block body;
};

struct MacroDefinition {
  std::string name;
  std::vector<int> parameters;                                // names
  std::vector<Expr> defaults;                                 // of the last parameters
  int caller_name = -1, varargs_name = -1, kwargs_name = -1;  // -1: the body does not mention it
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 1;
  std::string text;
  std::vector<Expr> expressions;  // output; set: value; for: iterable; call block: the call
  std::optional<Expr> condition;  // for: the filter
  std::vector<Target> targets;    // set, for, with
  std::vector<Postfix> filters;   // set block, filter block
  std::vector<Branch> branches;   // if
  Block body, otherwise;
  int name = -1;  // macro: its name; for: "loop"
  MacroDefinition macro;
};

struct Program {
  Block body;
  std::vector<std::string> names;  // every variable name of the template
};

}  // namespace outrider::jinja
