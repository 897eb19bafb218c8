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

// The first model of /v1/models. Throws Error when it cannot be had.
std::string first_model(const ServeTarget& target);

// Of /metrics; not known when it is not there.
SpeculationCount speculation_counters(const ServeTarget& target);

// Adds after - before where both are known.
void add_difference(const SpeculationCount& before,
                    const SpeculationCount& after,
                    SpeculationCount* sum);

}  // namespace outrider
