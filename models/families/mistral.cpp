// Mistral 7B and its kin; Mistral Small 3.1 inside mistral3.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config);
  read_rope(fields, config);
  // Hugging Face's default where the key is absent; an explicit null means none.
  config.sliding_window = fields.integer_or(
      "sliding_window", {1, kMaxPositions}, fields.has("sliding_window") ? 0 : 4096);
  const auto windowed = windowed_layers(fields, config);
  for (const bool layer_is_windowed : windowed.value_or(std::vector<bool>{})) {
    if (layer_is_windowed == (config.sliding_window > 0)) continue;
    fields.fail("\"layer_types\" and \"sliding_window\" say different things");
  }
}

}  // namespace

const Family kMistral = {"mistral", "a window on every layer", read};

}  // namespace outrider
