// What `bench serve` asks a server beside completions: whether it is up, what it serves, its
// counters.
#pragma once

#include <string>

#include "runtime/commands/bench/serve/serve_record.h"
#include "runtime/commands/bench/serve/serve_runner.h"

namespace outrider {

// Waits for 200 of /health, or of /v1/models where there is no /health. Throws Error after the
// time, or at once when a signal wants the program to stop.
void wait_until_ready(const ServeTarget& target, int32_t timeout_s);

struct AskedModel {
  std::string name;
  int32_t max_model_len = 0;  // 0 = the server does not say
};

// Of /v1/models the model of that name, or the first when the name is empty. Throws Error when the
// name is empty and there is none.
AskedModel asked_model(const ServeTarget& target, const std::string& name);

// Of /metrics; not known when it is not there.
SpeculationCount speculation_counters(const ServeTarget& target);

// Adds after - before where both are known.
void add_difference(const SpeculationCount& before,
                    const SpeculationCount& after,
                    SpeculationCount* sum);

}  // namespace outrider
