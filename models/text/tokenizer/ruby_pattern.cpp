// One walk over the pattern; a class is read by recursive descent with a bounded depth.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/text/tokenizer/ruby_pattern.h"

#include <pcre2.h>

#include <vector>

#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr int kMaxClassDepth = 8;

// \s and \w mean White_Space and Unicode's word characters in Oniguruma; PCRE2's own \s also takes
// U+180E and its \w no combining marks.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

[[noreturn]] void refuse(const std::string& construct) {
  throw Error("a pattern uses " + construct + ", which is not supported");
}

// \p{Han} is the script in Oniguruma, and all characters used in it in PCRE2, whose \p{sc:Han} is
// the script.
bool is_script(std::string_view name) {
  const std::string pattern = "\\p{sc:" + std::string(name) + "}";
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                       pattern.size(),
                                       PCRE2_UTF,
                                       &code,
                                       &offset,
                                       nullptr);
  pcre2_code_free(compiled);
  return compiled != nullptr;
}

// What a class is made of, between two &&.
struct Operand {
  std::string items;                // as PCRE2 writes them between brackets
  std::vector<std::string> nested;  // expressions for one character each

  std::string expression() const {
    std::string out = items.empty() ? "" : "[" + items + "]";
    if (nested.empty()) return out;
    for (const std::string& other : nested) out += (out.empty() ? "" : "|") + other;
    return "(?:" + out + ")";
  }
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    std::string out;
    while (pos_ < in_.size()) {
      if (in_[pos_] == '\\') {
        out += escape();
      } else if (in_[pos_] == '[') {
        out += bracket(0);
      } else {
        refuse_other_meaning();
        out += in_[pos_++];
      }
    }
    return out;
  }

 private:
  bool is_next(std::string_view text) const { return in_.substr(pos_).starts_with(text); }

  void refuse_other_meaning() const {
    if (is_next("(?m")) refuse("(?m");
    if (!is_next("}+")) return;
    // {1,3}+ is greedy in Ruby and possessive in PCRE2; \p{L}+ is neither.
    const size_t open = in_.rfind('{', pos_);
    const bool is_interval = open != std::string_view::npos && open + 1 < pos_ &&
                             in_[open + 1] >= '0' && in_[open + 1] <= '9';
    if (is_interval) refuse("a possessive interval");
  }

  // \x of any kind but \s, \S, \w, \W, which differ by where they stand.
  std::string other_escape() {
    if (pos_ + 1 == in_.size()) return std::string(1, in_[pos_++]);
    const char name = in_[pos_ + 1];
    if (name == 'h' || name == 'H') refuse("\\h");
    std::string out(in_.substr(pos_, 2));
    pos_ += 2;
    const size_t close = in_.find('}', pos_);
    if ((name != 'p' && name != 'P') || !is_next("{") || close == std::string_view::npos)
      return out;
    const std::string_view property = in_.substr(pos_ + 1, close - pos_ - 1);
    pos_ = close + 1;
    const bool is_negated = property.starts_with('^');
    const std::string_view plain = property.substr(is_negated ? 1 : 0);
    return out + "{" + (is_negated ? "^" : "") + (is_script(plain) ? "sc:" : "") +
           std::string(plain) + "}";
  }

  std::string escape() {
    const std::string_view both = in_.substr(pos_, 2);
    if (both != "\\s" && both != "\\S" && both != "\\w" && both != "\\W") return other_escape();
    pos_ += 2;
    if (both == "\\s") return R"(\p{White_Space})";
    if (both == "\\S") return R"(\P{White_Space})";
    return std::string(both == "\\w" ? "[" : "[^") + std::string(kWord) + "]";
  }

  void add_escape(Operand& operand) {
    if (is_next("\\w")) {
      operand.items += kWord;
      pos_ += 2;
    } else if (is_next("\\W")) {
      operand.nested.push_back(escape());
    } else {
      operand.items += escape();
    }
  }

  // [:name:]; those of letters take marks and letter numbers in Oniguruma.
  void add_posix(Operand& operand) {
    const size_t close = in_.find(":]", pos_ + 2);
    if (close == std::string_view::npos) refuse("an open class");
    const std::string_view name = in_.substr(pos_, close + 2 - pos_);
    pos_ = close + 2;
    if (name == "[:alpha:]") {
      operand.items += R"(\p{Alphabetic})";
    } else if (name == "[:alnum:]") {
      operand.items += R"(\p{Alphabetic}\p{Nd})";
    } else if (name == "[:word:]") {
      operand.items += kWord;
    } else {
      operand.items += name;
    }
  }

  // A class from its bracket on, as an expression for one character.
  std::string bracket(int depth) {
    if (depth == kMaxClassDepth) refuse("classes inside classes that are too deep");
    ++pos_;
    const bool is_negated = is_next("^");
    if (is_negated) ++pos_;
    std::vector<Operand> operands(1);
    if (is_next("]")) operands[0].items += in_[pos_++];  // it stands for itself
    while (!is_next("]")) {
      if (pos_ == in_.size()) refuse("an open class");
      if (is_next("&&")) {
        pos_ += 2;
        operands.emplace_back();
      } else if (is_next("[:")) {
        add_posix(operands.back());
      } else if (is_next("[")) {
        operands.back().nested.push_back(bracket(depth + 1));
      } else if (is_next("\\")) {
        add_escape(operands.back());
      } else {
        operands.back().items += in_[pos_++];
      }
    }
    ++pos_;
    return one_character(operands, is_negated);
  }

  static std::string one_character(const std::vector<Operand>& operands, bool is_negated) {
    for (const Operand& operand : operands)
      if (operand.items.empty() && operand.nested.empty()) refuse("an empty class");
    const Operand& last = operands.back();
    if (operands.size() == 1 && last.nested.empty())
      return (is_negated ? "[^" : "[") + last.items + "]";
    std::string all;
    for (size_t i = 0; i + 1 < operands.size(); ++i) all += "(?=" + operands[i].expression() + ")";
    all += last.expression();
    return is_negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
  }

  std::string_view in_;
  size_t pos_ = 0;
};

}  // namespace

std::string pcre2_pattern(std::string_view ruby_pattern) { return Translator(ruby_pattern).run(); }

}  // namespace outrider
