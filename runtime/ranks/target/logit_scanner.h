// Who answers sampling's questions about a model's logits: the host, or the GPU on which they are
// left then. On the host all threads of the model look at them.
#pragma once

#include <memory>

#include "models/forward/model.h"
#include "scheduler/rows/row_scanner.h"

namespace outrider {

// model must outlive it. read_on_host: somebody else wants to look at the logits in host memory
// (faults on purpose, checks, another tokenizer's ids).
std::unique_ptr<RowScanner> make_logit_scanner(Model& model, bool read_on_host);

// For measurements: the model's steps leave their logits where a server's do.
void keep_logits_on_device(Model& model);

// For logits in host memory: each thread of the context, which must outlive it and is busy with
// nothing else meanwhile, takes some of the rows.
std::unique_ptr<RowScanner> make_pooled_scanner(ops::Context& context);

}  // namespace outrider
