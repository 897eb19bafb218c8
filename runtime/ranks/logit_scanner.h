// Who answers sampling's questions about a model's logits: the host, or the GPU on which they are
// left then.
#pragma once

#include <memory>

#include "models/model.h"
#include "scheduler/row_scanner.h"

namespace outrider {

// model must outlive it. read_on_host: somebody else wants to look at the logits in host memory
// (faults on purpose, checks, another tokenizer's ids).
std::unique_ptr<RowScanner> make_logit_scanner(Model& model, bool read_on_host);

}  // namespace outrider
