// Answers questions about rows of logits in host memory, row by row, so that a row that several
// questions name is fetched once. One per thread that samples.
#pragma once

#include <span>

#include "scheduler/row_scanner.h"

namespace outrider {

class HostRowScanner final : public RowScanner {
 public:
  void hold(std::span<const RowView> rows) override { rows_ = rows; }
  void answer(RowQuestions& questions) override;

 private:
  std::span<const RowView> rows_;
};

}  // namespace outrider
