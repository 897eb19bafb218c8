// Mixtral 8x7B and 8x22B.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_kv_heads = 8, .default_eps = 1e-5});
  read_rope(fields, config, {.default_theta = 1e6});
  config.sliding_window = fields.integer_or("sliding_window", {1, kMaxPositions}, 0);
  read_mixtral_experts(fields, config, 8, 2);
}

}  // namespace

const Family kMixtral = {"mixtral", "experts, weights normalised; a window on every layer", read};

}  // namespace outrider
