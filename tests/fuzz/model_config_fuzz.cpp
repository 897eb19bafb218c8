// config.json, generation_config.json and tokenizer_config.json of a model folder, one behind the
// other with a zero byte between them. A shape that is taken can be cut over ranks or is refused.
#include "models/checkpoint/shard.h"
#include "models/families/families.h"
#include "models/forward/rope_frequencies.h"
#include "models/text/chat_template.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace outrider;
  static const fuzz::Folder folder;
  fuzz::Input input(data, num_bytes);
  folder.write("config.json", input.text_until('\0'));
  const std::string generation = input.text_until('\0');
  folder.write("generation_config.json", generation.empty() ? "{}" : generation);
  folder.write("tokenizer_config.json", input.empty() ? "{}" : input.rest());
  fuzz::takes([] { load_generation_defaults(folder.path()); });
  fuzz::takes([] { ChatTemplate::load(folder.path()); });
  ModelConfig config;
  if (!fuzz::takes([&] { config = load_model_config(folder.path()); })) return 0;
  FUZZ_CHECK(config.n_layers > 0 && config.vocab_size > 0 && config.head_dim > 0);
  FUZZ_CHECK(config.rope.rotary_dim <= config.head_dim && config.rope.rotary_dim % 2 == 0);
  rope_frequencies(config.rope);
  for (const int num_ranks : {1, 2, 8}) {
    fuzz::takes([&] {
      const ModelShard last = shard_model(config, num_ranks - 1, num_ranks);
      FUZZ_CHECK(last.vocab.end == config.vocab_size && last.ffn.end == config.ffn_dim);
    });
  }
  return 0;
}
