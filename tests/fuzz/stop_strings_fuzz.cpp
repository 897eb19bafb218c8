// Stop strings over token boundaries: a byte of flags, up to four stop strings (one a line, an
// empty one ends them), then token ids. Whatever comes at once, the same text is shown, and no stop
// string is in it.
#include "http/api/output_assembler.h"
#include "models/text/tokenizer/unicode.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

std::string shown(const OutputAssembler::Options& options,
                  std::span<const int32_t> ids,
                  size_t tokens_per_event) {
  static const auto tokenizer = Tokenizer::load(OUTRIDER_SOURCE_DIR "/tests/http/data");
  OutputAssembler assembler(tokenizer, options);
  std::string text;
  size_t num_tokens = 0;
  const auto take = [&] {
    const OutputDelta delta = assembler.take();
    FUZZ_CHECK(unicode::is_valid_utf8(delta.text));
    text += delta.text;
    num_tokens += delta.tokens.size();
  };
  for (size_t at = 0; at < ids.size() && !assembler.finished(); at += tokens_per_event) {
    const auto part = ids.subspan(at, std::min(tokens_per_event, ids.size() - at));
    assembler.add({.tokens = {part.begin(), part.end()}});
    take();
  }
  assembler.finish(FinishReason::kLength);
  take();
  FUZZ_CHECK(num_tokens == static_cast<size_t>(assembler.num_tokens()));
  FUZZ_CHECK(assembler.stop_reason().text.has_value() ==
             (assembler.finish_reason() == FinishReason::kStop));
  return text;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  fuzz::Input input(data, num_bytes);
  const uint8_t flags = input.byte();
  OutputAssembler::Options options{.include_stop_text = (flags & 1) != 0, .min_tokens = flags >> 4};
  // A request's are JSON texts, so they are UTF-8.
  for (std::string stop; options.stop.size() < 4 && !(stop = input.text_until('\n')).empty();)
    if (unicode::is_valid_utf8(stop)) options.stop.push_back(stop);
  const std::vector<int32_t> ids = input.ids(270);
  const std::string text = shown(options, ids, ids.size() + 1);
  for (const size_t tokens_per_event : {1, 3})
    FUZZ_CHECK(shown(options, ids, tokens_per_event) == text);
  if (options.include_stop_text || options.min_tokens > 0) return 0;
  for (const std::string& stop : options.stop) FUZZ_CHECK(text.find(stop) == std::string::npos);
  return 0;
}
