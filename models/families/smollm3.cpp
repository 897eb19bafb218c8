// SmolLM 3.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.tied = true});
  read_rope(fields, config, {.default_theta = 2e6});
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  config.mlp_bias = fields.flag_or("mlp_bias", false);
  const int32_t interval = fields.integer_or("no_rope_layer_interval", {1, 1'000'000}, 4);
  const auto with_rope = fields.numbers("no_rope_layers");  // 1: with rope
  if (with_rope && with_rope->size() < static_cast<size_t>(config.n_layers)) {
    fields.fail("\"no_rope_layers\" must list every layer");
  }
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const bool has_rope =
        with_rope ? (*with_rope)[static_cast<size_t>(layer)] != 0.0 : (layer + 1) % interval != 0;
    config.no_rope_layers.push_back(!has_rope);
  }
  // Without layer_types a window would be that of the layers without rope.
  fields.know({"max_window_layers"});
  const int32_t window = fields.integer_or("sliding_window", {1, kMaxPositions}, 0);
  const auto windowed = windowed_layers(fields, config);
  if (!fields.flag_or("use_sliding_window", false) && !windowed) return;
  config.sliding_window = window;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    config.full_layers.push_back(windowed ? !(*windowed)[l] : !config.no_rope_layers[l]);
  }
}

}  // namespace

const Family kSmollm3 = {"smollm3", "layers without rope; windows by layer", read};

}  // namespace outrider
