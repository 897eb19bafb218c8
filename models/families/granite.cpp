// Granite 3.x and 4.x without Mamba.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_granite(fields, config);
  config.mlp_bias = fields.flag_or("mlp_bias", false);
}

}  // namespace

const Family kGranite = {
    "granite", "factors on embedding, scores, residual stream and logits", read};

}  // namespace outrider
