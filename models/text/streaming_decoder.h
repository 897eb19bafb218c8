// Turns a growing sequence of token ids into text chunk by chunk, for streamed answers. One object
// per sequence, owned by the thread that streams it. Invariant: what push() returned so far plus
// flush() equals Tokenizer::decode() of all ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/text/tokenizer.h"
#include "models/text/tokenizer/decoder.h"

namespace outrider {

class StreamingDecoder {
 public:
  // shown_special_ids: not skipped, ascending.
  explicit StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer,
                            bool skip_special_tokens = true,
                            std::vector<int32_t> shown_special_ids = {});

  // The text that has become certain with this id; may be empty. Always valid UTF-8.
  std::string push(int32_t id);
  std::string push(int32_t id, bool skip_special_tokens);

  // What is left; incomplete bytes become U+FFFD. The decoder then starts a new sequence.
  std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_ = true;
  std::vector<int32_t> shown_special_ids_;
  DecodeState state_;
};

}  // namespace outrider
