// Structured output: the first byte chooses what the rest is (a JSON schema, a regular expression,
// EBNF, Lark, a structural tag). What compiles gives masks along a text that they allow.
#include "http/api/schema_gaps.h"
#include "runtime/base/files/json_gate.h"
#include "scheduler/sampling/grammar_engine.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

std::vector<std::string> vocabulary() {
  std::vector<std::string> bytes;
  for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
  for (const char* word : {"true", "{\"", "\": ", "123", "ab", "\xE4\xBD\xA0", "  "})
    bytes.emplace_back(word);
  return bytes;
}

// Goes where the mask lets it, a few tokens far.
void walk(const GrammarMask& mask, int32_t vocab_size) {
  const VocabShard shard{0, vocab_size, vocab_size};
  std::vector<int32_t> tokens = {0};
  for (int step = 0; step < 8; ++step) {
    std::vector<uint64_t> words(AllowedBits::num_words(shard), ~uint64_t{0});
    AllowedBits allowed(shard, words);
    const auto is_allowed = [&](int32_t id) {
      return (words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
    };
    const TokenHistory history{.committed = tokens, .num_prompt_tokens = 1};
    mask.restrict_next(history, allowed);
    mask.forced_tokens(history, 4);
    int32_t next = (step * 37 + 34) % vocab_size;
    for (int tried = 0; tried < vocab_size && !is_allowed(next); ++tried)
      next = (next + 1) % vocab_size;
    if (!is_allowed(next)) return;
    tokens.push_back(next);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  static const std::vector<std::string> bytes = vocabulary();
  static const auto vocab_size = static_cast<int32_t>(bytes.size());
  static const GrammarEngine engine(bytes, vocab_size);
  fuzz::Input input(data, num_bytes);
  const Grammar grammar{.kind = static_cast<GrammarKind>(input.byte() % 6),
                        .text = std::string(input.rest())};
  const bool is_json = json_fault(grammar.text, {}).empty();
  if (is_json) schema_gaps(grammar.text, 4);
  if (!is_json && grammar.kind <= GrammarKind::kCompactJson) return 0;  // refused before
  fuzz::takes([&] {
    engine.check(grammar, std::chrono::seconds(3));  // the limit is a request's guard too
    walk(*engine.mask(grammar), vocab_size);
  });
  return 0;
}
