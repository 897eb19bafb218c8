// OLMo 2.
#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config, {.default_eps = 1e-5});
  read_rope(fields, config);
  set_olmo(fields, config);
}

}  // namespace

const Family kOlmo2 = {
    "olmo2", "norms after attention and MLP; norms of q and k over all heads", read};

}  // namespace outrider
