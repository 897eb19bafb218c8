// Granite 3.x with experts.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_granite(fields, config);
  read_mixtral_experts(fields, config, 8, 2);
  config.names.router = "block_sparse_moe.router.layer";
  config.names.experts_gate_up = "block_sparse_moe.input_linear";
  config.names.experts_down = "block_sparse_moe.output_linear";
}

}  // namespace

const Family kGraniteMoe = {
    "granitemoe", "as granite; experts in two tensors, weights normalised", read};

}  // namespace outrider
