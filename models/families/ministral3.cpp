// Ministral 3 and Devstral 2, inside mistral3 or alone.
#include "models/families/readers.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_head_dim = 128, .default_eps = 1e-5});
  read_rope(fields, config);
  config.sliding_window = fields.integer_or("sliding_window", {1, kMaxPositions}, 0);
  fields.know({"layer_types"});  // Hugging Face does not ask for it either
  if (const auto rope = fields.object("rope_parameters")) {
    config.query_growth =
        static_cast<float>(rope->number_or("llama_4_scaling_beta", 0.0, 100.0, 0.0));
  }
}

}  // namespace

const Family kMinistral3 = {
    "ministral3", "yarn; queries that grow with the position; a window on every layer", read};

}  // namespace outrider
