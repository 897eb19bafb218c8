// See grammar_engine.h.
#include "scheduler/sampling/grammar_engine.h"

#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <semaphore>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

// Where this thread's messages of the library go; null: to the log.
thread_local std::vector<std::string>* collected_messages = nullptr;

void take_message(const std::string& message) {
  if (collected_messages == nullptr) return log_debug("xgrammar: {}", message);
  std::vector<std::string>& list = *collected_messages;
  if (std::find(list.begin(), list.end(), message) == list.end()) list.push_back(message);
}

struct Collecting {
  explicit Collecting(std::vector<std::string>* list) { collected_messages = list; }
  ~Collecting() { collected_messages = nullptr; }
};

}  // namespace
}  // namespace outrider

// XGRAMMAR_LOG_CUSTOMIZE: what the library says, and why it gives up.
namespace xgrammar {
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw outrider::Error(message);
}
void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  outrider::take_message(message);
}
}  // namespace xgrammar

namespace outrider {
namespace {

constexpr size_t kMaxCacheBytes = size_t{256} << 20;        // of compiled grammars
constexpr int64_t kMaxRuleCacheBytes = int64_t{384} << 20;  // a third of it is for rules
constexpr int kMaxNesting = 512;                            // of a grammar; each level takes stack
constexpr int kMaxCompiling = 4;     // others wait, so that a flood costs 4 cores
constexpr size_t kMaxMessages = 16;  // of one schema
constexpr int kMaxWhitespace = 8;    // in a row: a model that writes nothing else comes to an end

// One sentence of what the library threw: some of its messages have several lines.
std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Where in an output the part begins that a grammar is about. A function of the tokens alone, as
// the mask is: nothing is remembered, a search through ten thousand tokens takes some microseconds.
class ReasoningSpan {
 public:
  explicit ReasoningSpan(ReasoningTokens tokens) : tokens_(std::move(tokens)) {}

  // The tokens of the output before that part; nullopt while the reasoning goes on.
  std::optional<size_t> length(const TokenHistory& history) const {
    if (tokens_.end.empty()) return 0;
    const auto begin = static_cast<size_t>(history.num_prompt_tokens);
    size_t at = begin;
    if (!tokens_.is_begun) {
      if (num_begun(history) < tokens_.begin.size()) return 0;
      at += tokens_.begin.size();
    }
    for (; at + tokens_.end.size() <= history.size(); ++at) {
      size_t num_same = 0;
      while (num_same < tokens_.end.size() && history[at + num_same] == tokens_.end[num_same])
        ++num_same;
      if (num_same == tokens_.end.size()) return at + num_same - begin;
    }
    return std::nullopt;
  }

  // The token that would go on with the reasoning's beginning, where the output is a part of it.
  std::optional<int32_t> next_of_beginning(const TokenHistory& history) const {
    if (tokens_.end.empty() || tokens_.is_begun) return std::nullopt;
    const size_t num_output = history.size() - static_cast<size_t>(history.num_prompt_tokens);
    if (num_output >= tokens_.begin.size() || num_begun(history) < num_output) return std::nullopt;
    return tokens_.begin[num_output];
  }

 private:
  // How many tokens of the reasoning's beginning the output begins with.
  size_t num_begun(const TokenHistory& history) const {
    const auto begin = static_cast<size_t>(history.num_prompt_tokens);
    size_t num_same = 0;
    while (num_same < tokens_.begin.size() && begin + num_same < history.size() &&
           history[begin + num_same] == tokens_.begin[num_same]) {
      ++num_same;
    }
    return num_same;
  }

  const ReasoningTokens tokens_;
};

class XgrammarMask final : public GrammarMask {
 public:
  XgrammarMask(const xgrammar::CompiledGrammar& compiled,
               const Grammar& grammar,
               std::vector<int32_t> end_token_ids,
               const std::unordered_map<std::string_view, int32_t>& ids,
               size_t max_token_bytes)
      : matcher_(compiled, end_token_ids),
        end_token_ids_(std::move(end_token_ids)),
        reasoning_(grammar.reasoning),
        vocab_size_(compiled.GetTokenizerInfo().GetVocabSize()),
        ids_(ids),
        max_token_bytes_(max_token_bytes),
        words_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab_size_))) {}

  void restrict_next(const TokenHistory& history, AllowedBits& allowed) const override {
    const std::optional<int32_t> beginning = reasoning_.next_of_beginning(history);
    if (!move_to(history)) {  // in reasoning, behind a token that is forbidden, or at the end
      if (beginning) {
        allowed.forbid_all_but(std::span(&*beginning, 1));
      } else if (is_reasoning(history)) {  // what the grammar is about is still to come
        for (const int32_t id : end_token_ids_) allowed.forbid(id);
      }
      return;
    }
    int64_t size = std::ssize(words_);
    DLTensor tensor{words_.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), &size, nullptr, 0};
    if (!matcher_.FillNextTokenBitmask(&tensor)) return;  // all are allowed
    if (beginning) {
      const auto bit = static_cast<uint32_t>(*beginning);
      words_[bit / 32] |= uint32_t{1} << (bit % 32);
    }
    allowed.forbid_all_but_bits(words_);
  }

  size_t num_allowed(const TokenHistory& history, std::span<const int32_t> tokens) const override {
    std::vector<int32_t> drafted(history.drafted.begin(), history.drafted.end());
    TokenHistory longer = history;
    for (size_t i = 0; i < tokens.size(); ++i) {
      longer.drafted = drafted;
      if (!is_allowed(longer, tokens[i])) return i;
      drafted.push_back(tokens[i]);
    }
    return tokens.size();
  }

  std::vector<int32_t> forced_tokens(const TokenHistory& history, size_t most) const override {
    std::vector<int32_t> forced;
    if (reasoning_.next_of_beginning(history) || !move_to(history)) return forced;
    const std::string text = matcher_.FindJumpForwardString();
    for (std::string_view rest = text; !rest.empty() && forced.size() < most;) {
      auto found = ids_.end();
      size_t length = std::min(rest.size(), max_token_bytes_) + 1;
      while (found == ids_.end() && --length > 0) found = ids_.find(rest.substr(0, length));
      if (found == ids_.end()) break;
      forced.push_back(found->second);
      rest.remove_prefix(length);
    }
    return forced;
  }

 private:
  // Brings the matcher behind the history. False where it cannot come: the mask then says nothing.
  bool move_to(const TokenHistory& history) const {
    const std::optional<size_t> num_reasoning = reasoning_.length(history);
    if (!num_reasoning) return false;
    const size_t begin = static_cast<size_t>(history.num_prompt_tokens) + *num_reasoning;
    const size_t num_output = history.size() - begin;
    size_t common = 0;
    while (common < std::min(path_.size(), num_output) &&
           path_[common] == history[begin + common]) {
      ++common;
    }
    if (common < path_.size()) matcher_.Rollback(static_cast<int>(path_.size() - common));
    path_.resize(common);
    for (size_t i = common; i < num_output; ++i) {
      if (!accept(history[begin + i])) return false;
    }
    return !matcher_.IsTerminated();
  }

  bool is_allowed(const TokenHistory& history, int32_t token) const {
    const std::optional<int32_t> beginning = reasoning_.next_of_beginning(history);
    if (beginning == token) return true;
    if (move_to(history)) return accept(token);
    return !beginning && !(is_reasoning(history) && std::ranges::count(end_token_ids_, token) > 0);
  }

  bool is_reasoning(const TokenHistory& history) const { return !reasoning_.length(history); }

  bool accept(int32_t token) const {
    if (token < 0 || token >= vocab_size_ || matcher_.IsTerminated()) return false;
    if (!matcher_.AcceptToken(token)) return false;
    path_.push_back(token);
    return true;
  }

  mutable xgrammar::GrammarMatcher matcher_;
  mutable std::vector<int32_t> path_;  // what the matcher has accepted
  std::vector<int32_t> end_token_ids_;
  ReasoningSpan reasoning_;
  int32_t vocab_size_;
  const std::unordered_map<std::string_view, int32_t>& ids_;
  size_t max_token_bytes_;
  mutable std::vector<uint32_t> words_;  // one bit per token
};

// Of one text: what it became, and what the library said of it.
struct CompiledText {
  xgrammar::CompiledGrammar grammar;
  std::vector<std::string> messages;
};
using FutureText = std::shared_future<std::shared_ptr<const CompiledText>>;

// Texts that are or have been compiled, the oldest given up first.
class CompiledTexts {
 public:
  // Of a text that nobody has begun: `begin` is called for its future, under the lock.
  template <typename Begin>
  FutureText find_or(const std::string& key, const Begin& begin) {
    std::lock_guard lock(mutex_);
    const auto found = texts_.find(key);
    if (found != texts_.end()) return found->second;
    return texts_.emplace(key, begin()).first->second;
  }
  std::optional<FutureText> find(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto found = texts_.find(key);
    if (found == texts_.end()) return std::nullopt;
    return found->second;
  }
  void drop(const std::string& key) {
    std::lock_guard lock(mutex_);
    texts_.erase(key);
  }
  // It is compiled and takes so much.
  void keep(const std::string& key, size_t num_bytes) {
    std::lock_guard lock(mutex_);
    order_.emplace_back(key, num_bytes);
    num_bytes_ += num_bytes;
    while (num_bytes_ > kMaxCacheBytes && order_.size() > 1) {
      num_bytes_ -= order_.front().second;
      texts_.erase(order_.front().first);
      order_.pop_front();
    }
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, FutureText> texts_;
  std::deque<std::pair<std::string, size_t>> order_;  // as they were ready, with their sizes
  size_t num_bytes_ = 0;
};

// What the library takes for a character without a look: \U with eight digits, \u with braces. In
// JSON the backslash of a pattern is two.
void check_escapes(const Grammar& grammar) {
  constexpr uint32_t kLastCharacter = 0x10ffff;
  const bool is_json = grammar.kind == GrammarKind::kJsonSchema ||
                       grammar.kind == GrammarKind::kCompactJson ||
                       grammar.kind == GrammarKind::kStructuralTag;
  const std::string_view text = grammar.text;
  for (size_t at = text.find('\\'); at != text.npos; at = text.find('\\', at + (is_json ? 1 : 2))) {
    const std::string_view escape = text.substr(at + 1);
    const bool has_braces = escape.starts_with("u{");
    if (!has_braces && !escape.starts_with('U')) continue;
    const std::string_view digits = has_braces ? escape.substr(2, 6) : escape.substr(1, 8);
    uint32_t character = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), character, 16);
    if (character <= kLastCharacter) continue;
    throw Error(fmt::format("the escape at byte {} is beyond the last character, U+10FFFF", at));
  }
}

std::string key_of(const Grammar& grammar) {
  return std::to_string(static_cast<int>(grammar.kind)) + grammar.text;
}

}  // namespace

struct GrammarEngine::Impl : std::enable_shared_from_this<GrammarEngine::Impl> {
  Impl(const std::vector<std::string>& token_bytes, int32_t vocab_size)
      : no_end(vocab_size),
        vocabulary(token_bytes, xgrammar::VocabType::RAW, vocab_size + 1, std::vector<int32_t>{}),
        compiler(vocabulary, 1, true, kMaxRuleCacheBytes),
        plain_compiler(vocabulary, 1, false) {
    const std::vector<std::string>& bytes = vocabulary.GetDecodedVocab();
    for (size_t id = 0; id < bytes.size(); ++id) {
      if (bytes[id].empty()) continue;
      ids.emplace(bytes[id], static_cast<int32_t>(id));
      max_token_bytes = std::max(max_token_bytes, bytes[id].size());
    }
  }

  std::shared_ptr<const CompiledText> compile(const Grammar& grammar) const {
    std::vector<std::string> messages;
    const Collecting collecting(&messages);
    check_escapes(grammar);
    const auto made = std::make_shared<CompiledText>(CompiledText{build(grammar), {}});
    if (messages.size() > kMaxMessages) messages.resize(kMaxMessages);
    made->messages = std::move(messages);
    return made;
  }

  // Rules that grammars share are compiled once by `compiler`, which makes the next schema 500
  // times faster; but version 0.2.8 fails for 1 schema of 100 by that, and compiles them without.
  xgrammar::CompiledGrammar build(const Grammar& grammar) const {
    try {
      return build_with(compiler, grammar);
    } catch (const std::exception& error) {
      if (std::string_view(error.what()).find("per_rule_fsm_hashes") == std::string_view::npos)
        throw;
      return build_with(plain_compiler, grammar);
    }
  }

  static xgrammar::CompiledGrammar build_with(xgrammar::GrammarCompiler& compiler,
                                              const Grammar& grammar) {
    switch (grammar.kind) {
      case GrammarKind::kJsonSchema:
        return compiler.CompileJSONSchema(
            grammar.text, true, std::nullopt, std::nullopt, true, kMaxWhitespace);
      case GrammarKind::kCompactJson:
        return compiler.CompileJSONSchema(
            grammar.text, false, std::nullopt, std::pair<std::string, std::string>(",", ":"));
      case GrammarKind::kRegex:
        return compiler.CompileRegex(grammar.text);
      case GrammarKind::kEbnf:
        return compiler.CompileGrammar(grammar.text);
      case GrammarKind::kLark:
        return compiler.CompileLark(grammar.text);
      case GrammarKind::kStructuralTag:
        return compiler.CompileStructuralTag(grammar.text);
    }
    throw Error("there is no such kind of grammar");
  }

  // On a thread of its own, which gives a place back that it has. Nobody waits for it at the end of
  // the process: the library cannot be interrupted.
  FutureText begin_compiling(const Grammar& grammar, bool has_place) const {
    std::promise<std::shared_ptr<const CompiledText>> promise;
    FutureText future = promise.get_future().share();
    const std::shared_ptr<const Impl> impl = shared_from_this();
    std::thread([impl, grammar, has_place, promise = std::move(promise)]() mutable {
      const std::string key = key_of(grammar);
      try {
        auto text = impl->compile(grammar);
        impl->texts.keep(key, key.size() + text->grammar.MemorySizeBytes());
        promise.set_value(std::move(text));
      } catch (const std::exception& error) {
        impl->texts.drop(key);
        promise.set_exception(std::make_exception_ptr(Error(first_line(error.what()))));
      }
      if (has_place) impl->places.release();
    }).detach();
    return future;
  }

  // The one that is there, or a new one; a place that it does not take is given back.
  FutureText future_text(const Grammar& grammar, bool has_place) const {
    bool is_new = false;
    FutureText text = texts.find_or(key_of(grammar), [&] {
      is_new = true;
      return begin_compiling(grammar, has_place);
    });
    if (has_place && !is_new) places.release();
    return text;
  }

  const int32_t no_end;  // a token that nobody can write: a matcher wants one that ends the text
  xgrammar::TokenizerInfo vocabulary;
  mutable xgrammar::GrammarCompiler compiler;  // both may be called by any thread
  mutable xgrammar::GrammarCompiler plain_compiler;
  mutable CompiledTexts texts;
  std::unordered_map<std::string_view, int32_t> ids;  // of the vocabulary's bytes
  size_t max_token_bytes = 0;
  mutable std::counting_semaphore<kMaxCompiling> places{kMaxCompiling};
};

bool GrammarEngine::is_built() { return true; }

GrammarEngine::GrammarEngine(const std::vector<std::string>& token_bytes, int32_t vocab_size) {
  static std::once_flag once;
  std::call_once(once, [] { xgrammar::SetMaxRecursionDepth(kMaxNesting); });
  impl_ = std::make_shared<const Impl>(token_bytes, vocab_size);
}

GrammarEngine::~GrammarEngine() = default;

std::vector<std::string> GrammarEngine::check(const Grammar& grammar,
                                              std::chrono::milliseconds limit) const {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const auto too_long = [&] {
    return Error(fmt::format("the grammar takes longer than {} ms to compile", limit.count()));
  };
  std::optional<FutureText> text = impl_->texts.find(key_of(grammar));
  if (!text) {
    const bool has_place = impl_->places.try_acquire() || impl_->places.try_acquire_until(deadline);
    if (!has_place) throw too_long();
    text = impl_->future_text(grammar, true);
  }
  if (text->wait_until(deadline) != std::future_status::ready) throw too_long();
  return text->get()->messages;
}

bool GrammarEngine::knows(const Grammar& grammar) const {
  return impl_->texts.find(key_of(grammar)).has_value();
}

void GrammarEngine::prepare(const Grammar& grammar) const {
  if (impl_->places.try_acquire()) impl_->future_text(grammar, true);
}

std::shared_ptr<const GrammarMask> GrammarEngine::mask(const Grammar& grammar) const {
  const std::shared_ptr<const CompiledText> text = impl_->future_text(grammar, false).get();
  std::vector<int32_t> ends = grammar.end_token_ids;
  if (ends.empty()) ends.push_back(impl_->no_end);
  return std::make_shared<XgrammarMask>(
      text->grammar, grammar, std::move(ends), impl_->ids, impl_->max_token_bytes);
}

}  // namespace outrider
