// Token stream of the template parser.
#include "models/text/jinja/token_stream.h"

#include <fmt/core.h>

namespace outrider::jinja {

std::string describe(const Token& token) {
  static constexpr std::string_view kNames[] = {"text",
                                                "'{{'",
                                                "'}}'",
                                                "'{%'",
                                                "'%}'",
                                                "",
                                                "a string",
                                                "a number",
                                                "a number",
                                                "",
                                                "the end of the template"};
  const std::string_view name = kNames[static_cast<size_t>(token.kind)];
  return name.empty() ? "'" + token.text + "'" : std::string(name);
}

Token TokenStream::take() {
  Token token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::at_operator(std::string_view op) const {
  return at(TokenKind::kOperator) && current().text == op;
}

bool TokenStream::at_name(std::string_view name) const {
  return at(TokenKind::kName) && current().text == name;
}

bool TokenStream::take_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  take();
  return true;
}

bool TokenStream::take_name(std::string_view name) {
  if (!at_name(name)) return false;
  take();
  return true;
}

void TokenStream::expect_operator(std::string_view op) {
  if (!take_operator(op)) fail(fmt::format("expected '{}' but found {}", op, describe(current())));
}

void TokenStream::expect_name(std::string_view name) {
  if (!take_name(name)) fail(fmt::format("expected '{}' but found {}", name, describe(current())));
}

std::string TokenStream::expect_any_name() {
  if (!at(TokenKind::kName)) fail("expected a name but found " + describe(current()));
  return take().text;
}

void TokenStream::expect(TokenKind kind) {
  if (!at(kind)) {
    fail(fmt::format("expected {} but found {}", describe({.kind = kind}), describe(current())));
  }
  take();
}

int TokenStream::intern(const std::string& name) {
  const auto [found, is_new] = ids_.emplace(name, static_cast<int>(names_.size()));
  if (is_new) names_.push_back(name);
  return found->second;
}

bool TokenStream::mentions_since(size_t begin, std::string_view name) const {
  for (size_t i = begin; i < at_; ++i) {
    const bool after_dot =
        i > 0 && tokens_[i - 1].kind == TokenKind::kOperator && tokens_[i - 1].text == ".";
    if (tokens_[i].kind == TokenKind::kName && tokens_[i].text == name && !after_dot) return true;
  }
  return false;
}

void TokenStream::fail(std::string_view what) const { fail_at_line(line(), what); }

}  // namespace outrider::jinja
