// tokenizer.json, and behind a zero byte tokenizer_config.json. One that loads encodes any text
// into its own ids, and what it decodes is UTF-8.
#include "models/text/tokenizer.h"
#include "models/text/tokenizer/unicode.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace outrider;
  fuzz::Input input(data, num_bytes);
  const std::string json = input.text_until('\0');
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!fuzz::takes([&] { tokenizer = Tokenizer::from_json(json, input.rest()); })) return 0;
  const std::string text = "<s>Hello  \xC3\xA9\n 123 \xE4\xBD\xA0\xF0\x9F\x99\x82\xFF</s> ab abab";
  for (const std::string& each : {text, std::string(input.rest())}) {
    const std::vector<TextSpan> spans = {{0, each.size() / 2}};
    std::vector<int32_t> ids;
    // An unknown character without unk_token is an Error.
    if (!fuzz::takes([&] { ids = tokenizer->encode(each, {.literal_spans = spans}); })) continue;
    for (const int32_t id : ids) FUZZ_CHECK(id >= 0 && id < tokenizer->vocab_size());
    FUZZ_CHECK(unicode::is_valid_utf8(tokenizer->decode(ids, each.size() % 2 == 0)));
  }
  return 0;
}
