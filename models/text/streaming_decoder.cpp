// See streaming_decoder.h: the steps of Tokenizer::decode(), one per push.
#include "models/text/streaming_decoder.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {

StreamingDecoder::StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer,
                                   bool skip_special_tokens,
                                   std::vector<int32_t> shown_special_ids)
    : tokenizer_(std::move(tokenizer)),
      skip_special_tokens_(skip_special_tokens),
      shown_special_ids_(std::move(shown_special_ids)) {
  OUTRIDER_CHECK(tokenizer_ != nullptr);
}

std::string StreamingDecoder::push(int32_t id) {
  const bool is_shown = std::ranges::binary_search(shown_special_ids_, id);
  return push(id, skip_special_tokens_ && !is_shown);
}

std::string StreamingDecoder::push(int32_t id, bool skip_special_tokens) {
  std::string out;
  tokenizer_->push_token(state_, id, skip_special_tokens, out);
  return out;
}

std::string StreamingDecoder::flush() {
  std::string out;
  tokenizer_->flush_tokens(state_, out);
  return out;
}

}  // namespace outrider
