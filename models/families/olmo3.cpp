// OLMo 3.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_eps = 1e-5});
  const double theta = fields.number_or("rope_theta", 1.0, 1e12, 5e5);
  read_rope(fields, config, {.default_theta = 5e5, .of_kinds = true, .local_theta = theta});
  set_olmo(fields, config);
  read_windows(fields, config, 4096, 4);
}

}  // namespace

const Family kOlmo3 = {"olmo3", "as olmo2; windows and ropes by layer", read};

}  // namespace outrider
