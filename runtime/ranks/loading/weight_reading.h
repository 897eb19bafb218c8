// A model's weights by its name: read from its folder, with a line in the log every two seconds, or
// made up.
#pragma once

#include <memory>
#include <string>

#include "models/checkpoint/shard.h"
#include "models/weights/weights.h"
#include "runtime/ops/thread_plan.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// With as many threads as will compute: each touches first what it will read.
std::unique_ptr<Weights> weights_of(const std::string& name,
                                    Role role,
                                    const ModelConfig& config,
                                    const ModelShard& shard,
                                    const ops::ThreadPlan& threads);

}  // namespace outrider
