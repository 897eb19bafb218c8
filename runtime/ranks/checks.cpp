// See checks.h.
#include "runtime/ranks/checks.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

#ifdef NDEBUG
constexpr bool kIsDebugBuild = false;
#else
constexpr bool kIsDebugBuild = true;
#endif

}  // namespace

Checks Checks::parse(std::string_view text) {
  Checks checks;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    if (word == "books") {
      checks.books = true;
    } else if (word == "poison") {
      checks.poison = true;
    } else {
      throw Error(fmt::format("{}: '{}' is none of books, poison", kVariable, word));
    }
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return checks;
}

Checks Checks::from_environment() {
  const char* text = std::getenv(kVariable);
  return text == nullptr ? Checks{} : parse(text);
}

BookCheck::BookCheck(const Checks& checks, Counter& faults, std::function<std::string()> look)
    : look_(std::move(look)), is_strict_(checks.books || kIsDebugBuild), faults_(faults) {}

void BookCheck::after_round() {
  was_idle_ = false;
  if (is_strict_) check();
}

void BookCheck::when_idle() {
  if (!was_idle_) check();
  was_idle_ = true;
}

void BookCheck::check() {
  const std::string fault = look_();
  if (fault.empty()) return;
  faults_.add();
  if (!has_spoken_) log_error("internal error: the KV accounting is wrong: {}", fault);
  has_spoken_ = true;
  OUTRIDER_CHECK(!is_strict_);
}

}  // namespace outrider
