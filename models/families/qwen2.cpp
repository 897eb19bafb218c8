// Qwen 1.5, 2 and 2.5.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config);
  read_rope(fields, config);
  read_qwen_windows(fields, config);
  config.attention_bias = true;
}

}  // namespace

const Family kQwen2 = {"qwen2", "biases on q, k and v; windows by layer", read};

}  // namespace outrider
