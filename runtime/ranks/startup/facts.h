// What a rank says of itself in the startup handshake.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/startup/handshake.h"

namespace outrider {

// Adds to *facts. Reads the model's configuration and tokenizer and, on ranks that will load them,
// some KB of each weight tensor; rank 0 does so for a draft's too when it sees the draft's folder.
// Throws Error when files are missing or are not what they should be.
void add_startup_facts(const RunConfig& config,
                       const RankLayout& layout,
                       int rank,
                       std::vector<Fact>* facts);

}  // namespace outrider
