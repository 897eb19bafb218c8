// Statements of the template language.
#include "models/text/jinja/parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "models/text/jinja/expression_parser.h"
#include "models/text/jinja/token_stream.h"

namespace outrider::jinja {

namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Program run() {
    Program program;
    program.body = parse_block({});
    program.names = tokens_.take_names();
    return program;
  }

 private:
  using Names = std::vector<std::string_view>;

  // Until one of the `ends` tags, whose name stays the current token; without ends: to the end.
  Block parse_block(const Names& ends) {
    const NestingGuard guard(expressions_.depth, tokens_);
    Block block;
    while (!tokens_.at(TokenKind::kEnd)) {
      const int line = tokens_.line();
      if (tokens_.at(TokenKind::kText)) {
        block.push_back({.kind = StmtKind::kText, .line = line, .text = tokens_.take().text});
      } else if (tokens_.at(TokenKind::kOutputBegin)) {
        tokens_.take();
        Stmt output{.kind = StmtKind::kOutput, .line = line};
        output.expressions.push_back(expressions_.parse_tuple());
        tokens_.expect(TokenKind::kOutputEnd);
        block.push_back(std::move(output));
      } else {
        tokens_.expect(TokenKind::kStatementBegin);
        if (at_one_of(ends)) return block;
        block.push_back(parse_statement());
        tokens_.expect(TokenKind::kStatementEnd);
      }
    }
    if (!ends.empty()) tokens_.fail(fmt::format("'{}' is missing", ends.back()));
    return block;
  }

  bool at_one_of(const Names& names) const {
    return std::ranges::any_of(names, [&](std::string_view name) { return tokens_.at_name(name); });
  }

  // The body of a tag: from its %} to the end tag's name, which is taken when it is `last`.
  Block parse_body(const Names& ends) {
    tokens_.take_operator(":");
    tokens_.expect(TokenKind::kStatementEnd);
    return parse_block(ends);
  }
  Block parse_body_and_end(std::string_view end) {
    Block block = parse_body({end});
    tokens_.take();
    return block;
  }

  Stmt parse_statement() {
    const int line = tokens_.line();
    if (!tokens_.at(TokenKind::kName)) tokens_.fail("a tag name is missing behind {%");
    const std::string tag = tokens_.take().text;
    if (tag == "set") return parse_set(line);
    if (tag == "for") return parse_for(line);
    if (tag == "if") return parse_if(line);
    if (tag == "macro") return parse_macro(line);
    if (tag == "call") return parse_call_block(line);
    if (tag == "filter") return parse_filter_block(line);
    if (tag == "with") return parse_with(line);
    if (tag == "generation") return parse_generation(line);
    if (tag == "print") return parse_print(line);
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) fail_at_line(line, fmt::format("'{}' is outside a loop", tag));
      return {.kind = tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, .line = line};
    }
    static constexpr std::string_view kEnds[] = {"elif",
                                                 "else",
                                                 "endif",
                                                 "endfor",
                                                 "endset",
                                                 "endmacro",
                                                 "endcall",
                                                 "endfilter",
                                                 "endwith",
                                                 "endgeneration"};
    if (std::ranges::count(kEnds, tag) > 0) {
      fail_at_line(line, fmt::format("'{}' has no tag that it could belong to", tag));
    }
    fail_at_line(line, fmt::format("tag '{}' is not supported", tag));
  }

  Stmt parse_set(int line) {
    Target target = expressions_.parse_target({}, true);
    if (tokens_.take_operator("=")) {
      Stmt set{.kind = StmtKind::kSet, .line = line};
      set.targets.push_back(std::move(target));
      set.expressions.push_back(expressions_.parse_tuple());
      return set;
    }
    Stmt set{.kind = StmtKind::kSetBlock, .line = line};
    set.targets.push_back(std::move(target));
    set.filters = expressions_.parse_filters();
    set.body = parse_body_and_end("endset");
    return set;
  }

  Stmt parse_for(int line) {
    using Ternary = ExpressionParser::Ternary;
    Stmt loop{.kind = StmtKind::kFor, .line = line};
    loop.targets.push_back(expressions_.parse_target("in"));
    tokens_.expect_name("in");
    loop.expressions.push_back(expressions_.parse_tuple(Ternary::kNotAllowed, "recursive"));
    if (tokens_.take_name("if")) loop.condition = expressions_.parse_expression();
    if (tokens_.at_name("recursive")) tokens_.fail("recursive loops are not supported");
    ++loop_depth_;
    loop.body = parse_body({"else", "endfor"});
    loop.name = tokens_.intern("loop");
    --loop_depth_;
    if (tokens_.take().text == "else") loop.otherwise = parse_body_and_end("endfor");
    return loop;
  }

  Stmt parse_if(int line) {
    using Ternary = ExpressionParser::Ternary;
    Stmt statement{.kind = StmtKind::kIf, .line = line};
    while (true) {
      Branch branch;
      branch.condition = expressions_.parse_tuple(Ternary::kNotAllowed);
      branch.body = parse_body({"elif", "else", "endif"});
      statement.branches.push_back(std::move(branch));
      if (tokens_.take_name("elif")) continue;
      if (tokens_.take_name("else")) {
        statement.otherwise = parse_body_and_end("endif");
      } else {
        tokens_.take();
      }
      return statement;
    }
  }

  // "(a, b=1)"
  void parse_signature(MacroDefinition& macro) {
    tokens_.expect_operator("(");
    while (!tokens_.at_operator(")")) {
      if (!macro.parameters.empty()) tokens_.expect_operator(",");
      const std::string name = tokens_.expect_any_name();
      const int id = tokens_.intern(name);
      if (std::ranges::count(macro.parameters, id) > 0) {
        tokens_.fail("parameter '" + name + "' is named twice");
      }
      macro.parameters.push_back(id);
      if (tokens_.take_operator("=")) {
        macro.defaults.push_back(expressions_.parse_expression());
      } else if (!macro.defaults.empty()) {
        tokens_.fail("a parameter without default follows one with");
      }
    }
    tokens_.take();
  }

  // A macro's body lies outside the loops around it. Which of the special names it mentions decides
  // how the macro may be called.
  Block parse_macro_body(MacroDefinition& macro, std::string_view end) {
    const int outer_loops = std::exchange(loop_depth_, 0);
    const size_t begin = tokens_.position();
    Block body = parse_body_and_end(end);
    loop_depth_ = outer_loops;
    const auto mentioned = [&](const char* name) {
      return tokens_.mentions_since(begin, name) ? tokens_.intern(name) : -1;
    };
    macro.caller_name = mentioned("caller");
    macro.varargs_name = mentioned("varargs");
    macro.kwargs_name = mentioned("kwargs");
    return body;
  }

  Stmt parse_macro(int line) {
    Stmt statement{.kind = StmtKind::kMacro, .line = line};
    statement.macro.name = tokens_.expect_any_name();
    statement.name = tokens_.intern(statement.macro.name);
    parse_signature(statement.macro);
    statement.body = parse_macro_body(statement.macro, "endmacro");
    return statement;
  }

  Stmt parse_call_block(int line) {
    Stmt statement{.kind = StmtKind::kCallBlock, .line = line};
    statement.macro.name = "caller";
    if (tokens_.at_operator("(")) parse_signature(statement.macro);
    Expr call = expressions_.parse_expression();
    if (call.kind != ExprKind::kPostfix || call.postfixes.back().kind != PostfixKind::kCall) {
      fail_at_line(line, "a call block needs a call");
    }
    statement.expressions.push_back(std::move(call));
    statement.body = parse_macro_body(statement.macro, "endcall");
    return statement;
  }

  Stmt parse_filter_block(int line) {
    Stmt statement{.kind = StmtKind::kFilterBlock, .line = line};
    statement.filters.push_back(expressions_.parse_filter());
    for (Postfix& filter : expressions_.parse_filters()) {
      statement.filters.push_back(std::move(filter));
    }
    statement.body = parse_body_and_end("endfilter");
    return statement;
  }

  Stmt parse_with(int line) {
    Stmt statement{.kind = StmtKind::kWith, .line = line};
    while (!tokens_.at(TokenKind::kStatementEnd)) {
      if (!statement.targets.empty()) tokens_.expect_operator(",");
      statement.targets.push_back(expressions_.parse_target("="));
      tokens_.expect_operator("=");
      statement.expressions.push_back(expressions_.parse_expression());
    }
    statement.body = parse_body_and_end("endwith");
    return statement;
  }

  // Hugging Face's mark around what the assistant said: only its scope matters for the text.
  Stmt parse_generation(int line) {
    Stmt statement{.kind = StmtKind::kScope, .line = line};
    const int outer_loops = std::exchange(loop_depth_, 0);
    statement.body = parse_body_and_end("endgeneration");
    loop_depth_ = outer_loops;
    return statement;
  }

  Stmt parse_print(int line) {
    Stmt statement{.kind = StmtKind::kOutput, .line = line};
    while (!tokens_.at(TokenKind::kStatementEnd)) {
      if (!statement.expressions.empty()) tokens_.expect_operator(",");
      statement.expressions.push_back(expressions_.parse_expression());
    }
    return statement;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loop_depth_ = 0;
};

}  // namespace

Program parse_program(std::string_view source) { return Parser(source).run(); }

}  // namespace outrider::jinja
