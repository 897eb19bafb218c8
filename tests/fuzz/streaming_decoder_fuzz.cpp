// Token ids to text as they come, with a byte-level tokenizer and one with byte fallback: the first
// byte chooses, two bytes are an id. What streams out is whole UTF-8 and adds up to decode().
#include "models/text/streaming_decoder.h"
#include "models/text/tokenizer/unicode.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace outrider;
  static const std::shared_ptr<const Tokenizer> tokenizers[] = {
      Tokenizer::load(OUTRIDER_SOURCE_DIR "/tests/http/data"),
      Tokenizer::load(OUTRIDER_SOURCE_DIR "/tests/golden/tokenizer/llama2")};
  fuzz::Input input(data, num_bytes);
  const uint8_t flags = input.byte();
  const auto& tokenizer = tokenizers[flags & 1];
  const bool skips = (flags & 2) != 0;
  const std::vector<int32_t> ids = input.ids(tokenizer->vocab_size() + 8);
  StreamingDecoder decoder(tokenizer, skips);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    FUZZ_CHECK(unicode::is_valid_utf8(piece));
    text += piece;
  }
  text += decoder.flush();
  FUZZ_CHECK(unicode::is_valid_utf8(text));
  FUZZ_CHECK(text == tokenizer->decode(ids, skips));
  return 0;
}
