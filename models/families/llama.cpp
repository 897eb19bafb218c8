// Llama 1 to 3.x, and what others publish under its name.
#include <algorithm>

#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config);
  read_rope(fields, config);
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  config.mlp_bias = fields.flag_or("mlp_bias", false);
  // Programs read a window here in different ways, so only contexts within it are the same.
  const auto windowed = windowed_layers(fields, config);
  const bool has_windowed =
      !windowed || std::find(windowed->begin(), windowed->end(), true) != windowed->end();
  const int32_t window = fields.integer_or("sliding_window", {1, kMaxPositions}, 0);
  if (fields.flag_or("use_sliding_window", true) && has_windowed) config.undecided_window = window;
}

}  // namespace

const Family kLlama = {
    "llama", "biases; rope: linear, dynamic, llama3, yarn; any activation", read};

}  // namespace outrider
