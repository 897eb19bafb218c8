// See grammar_engine.h.
#include "scheduler/sampling/grammar_engine.h"

#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <future>
#include <mutex>
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

constexpr int64_t kMaxCacheBytes = int64_t{256} << 20;  // of compiled grammars
constexpr int kMaxNesting = 512;                        // of a grammar; each level takes stack
constexpr int kMaxCompiling = 4;                        // others wait, so that a flood costs 4 cores
constexpr size_t kMaxMessages = 16;  // of one schema
constexpr int kMaxWhitespace = 8;  // in a row: a model that writes nothing else comes to an end

// One sentence of what the library threw: some of its messages have several lines.
std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

class XgrammarMask final : public GrammarMask {
 public:
  XgrammarMask(const xgrammar::CompiledGrammar& grammar,
               std::vector<int32_t> end_token_ids,
               const std::unordered_map<std::string_view, int32_t>& ids,
               size_t max_token_bytes)
      : matcher_(grammar, std::move(end_token_ids)),
        vocab_size_(grammar.GetTokenizerInfo().GetVocabSize()),
        ids_(ids),
        max_token_bytes_(max_token_bytes),
        words_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab_size_))) {}

  void restrict_next(const TokenHistory& history, AllowedBits& allowed) const override {
    if (!move_to(history)) return;  // behind a token that is forbidden, or the end
    int64_t size = std::ssize(words_);
    DLTensor tensor{words_.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), &size, nullptr, 0};
    if (!matcher_.FillNextTokenBitmask(&tensor)) return;  // all are allowed
    allowed.forbid_all_but_bits(words_);
  }

  size_t num_allowed(const TokenHistory& history, std::span<const int32_t> tokens) const override {
    if (!move_to(history)) return tokens.size();
    const auto bad = std::find_if_not(
        tokens.begin(), tokens.end(), [this](int32_t token) { return accept(token); });
    return static_cast<size_t>(bad - tokens.begin());
  }

  std::vector<int32_t> forced_tokens(const TokenHistory& history, size_t most) const override {
    std::vector<int32_t> forced;
    if (!move_to(history)) return forced;
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
    const auto begin = static_cast<size_t>(history.num_prompt_tokens);
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

  bool accept(int32_t token) const {
    if (token < 0 || token >= vocab_size_ || matcher_.IsTerminated()) return false;
    if (!matcher_.AcceptToken(token)) return false;
    path_.push_back(token);
    return true;
  }

  mutable xgrammar::GrammarMatcher matcher_;
  mutable std::vector<int32_t> path_;  // what the matcher has accepted
  int32_t vocab_size_;
  const std::unordered_map<std::string_view, int32_t>& ids_;
  size_t max_token_bytes_;
  mutable std::vector<uint32_t> words_;  // one bit per token
};

}  // namespace

struct GrammarEngine::Impl {
  Impl(const std::vector<std::string>& token_bytes, int32_t vocab_size)
      : no_end(vocab_size),
        vocabulary(token_bytes, xgrammar::VocabType::RAW, vocab_size + 1, std::vector<int32_t>{}),
        compiler(vocabulary, 1, true, kMaxCacheBytes) {
    const std::vector<std::string>& bytes = vocabulary.GetDecodedVocab();
    for (size_t id = 0; id < bytes.size(); ++id) {
      if (bytes[id].empty()) continue;
      ids.emplace(bytes[id], static_cast<int32_t>(id));
      max_token_bytes = std::max(max_token_bytes, bytes[id].size());
    }
  }

  // Says again what it said when the same schema was compiled before.
  std::vector<std::string> messages_of(const Grammar& grammar) const {
    if (grammar.kind != GrammarKind::kJsonSchema && grammar.kind != GrammarKind::kCompactJson)
      return {};
    std::vector<std::string> messages;
    struct Collecting {
      explicit Collecting(std::vector<std::string>* list) { collected_messages = list; }
      ~Collecting() { collected_messages = nullptr; }
    } const collecting(&messages);
    xgrammar::Grammar::FromJSONSchema(grammar.text);
    if (messages.size() > kMaxMessages) messages.resize(kMaxMessages);
    return messages;
  }

  xgrammar::CompiledGrammar compile(const Grammar& grammar) const {
    try {
      switch (grammar.kind) {
        case GrammarKind::kJsonSchema:
          return compiler.CompileJSONSchema(
              grammar.text, true, std::nullopt, std::nullopt, true, kMaxWhitespace);
        case GrammarKind::kCompactJson:
          return compiler.CompileJSONSchema(
              grammar.text, false, std::nullopt, std::pair<std::string, std::string>(",", ":"));
        case GrammarKind::kRegex: return compiler.CompileRegex(grammar.text);
        case GrammarKind::kEbnf: return compiler.CompileGrammar(grammar.text);
        case GrammarKind::kLark: return compiler.CompileLark(grammar.text);
        case GrammarKind::kStructuralTag: return compiler.CompileStructuralTag(grammar.text);
      }
    } catch (const std::exception& error) {
      throw Error(first_line(error.what()));
    }
    throw Error("there is no such kind of grammar");
  }

  const int32_t no_end;  // a token that nobody can write: a matcher wants one that ends the text
  xgrammar::TokenizerInfo vocabulary;
  mutable xgrammar::GrammarCompiler compiler;            // guards itself
  std::unordered_map<std::string_view, int32_t> ids;     // of the vocabulary's bytes
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

// The library cannot be interrupted: a grammar that takes too long costs its request, and keeps its
// place until it is done.
std::vector<std::string> GrammarEngine::check(const Grammar& grammar,
                                              std::chrono::milliseconds limit) const {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const auto too_long = [&] {
    return Error(fmt::format("the grammar takes longer than {} ms to compile", limit.count()));
  };
  if (!impl_->places.try_acquire_until(deadline)) throw too_long();
  std::packaged_task<std::vector<std::string>()> task([impl = impl_, grammar] {
    struct Place {
      const Impl& impl;
      ~Place() { impl.places.release(); }
    } const place{*impl};
    impl->compile(grammar);
    return impl->messages_of(grammar);
  });
  std::future<std::vector<std::string>> compiled = task.get_future();
  std::thread(std::move(task)).detach();
  if (compiled.wait_until(deadline) != std::future_status::ready) throw too_long();
  return compiled.get();
}

std::shared_ptr<const GrammarMask> GrammarEngine::mask(const Grammar& grammar) const {
  std::vector<int32_t> ends = grammar.end_token_ids;
  if (ends.empty()) ends.push_back(impl_->no_end);
  return std::make_shared<XgrammarMask>(
      impl_->compile(grammar), std::move(ends), impl_->ids, impl_->max_token_bytes);
}

}  // namespace outrider
