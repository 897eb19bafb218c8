// Answers questions about rows of logits in host memory, row by row, so that a row that several
// questions name is fetched once. One per thread that samples.
#pragma once

#include <span>
#include <vector>

#include "scheduler/draw_search.h"
#include "scheduler/row_scanner.h"

namespace outrider {

class HostRowScanner final : public RowScanner {
 public:
  void hold(std::span<const RowView> rows) override;
  void answer(RowQuestions& questions) override;

 private:
  std::span<const RowView> rows_;
  std::vector<RowPeaks> peaks_;  // by row; empty until somebody has looked at all of it
};

}  // namespace outrider
