// What the front ends have in common: the service they all speak to, made from a job's context.
#pragma once

#include "http/service.h"
#include "http/wire/options.h"
#include "runtime/ranks/job/job.h"

namespace outrider {

// Throws Error for a synthetic model: its ids are not text.
void refuse_synthetic(const RunConfig& config);

HttpOptions http_options(const RunConfig& config);
ServedModel served_model(const FrontEndContext& context);

}  // namespace outrider
