// The probes of gpu_probe, one per file. Each fills its report and throws std::runtime_error with
// one sentence when it cannot go on; what it had measured by then stays in the report.
#pragma once

#include <string>

#include "tools/gpu/probe/report.h"

namespace outrider::gpu_probe {

// Empty when a device can be used; otherwise one sentence that says why none can.
std::string why_no_device();

void probe_device(Report& report);
void probe_bandwidth(Report& report);
void probe_launch_gap(Report& report);

}  // namespace outrider::gpu_probe
