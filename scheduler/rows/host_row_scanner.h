// Answers questions about rows of logits in host memory, row by row, so that a row that several
// questions name is fetched once. One per thread that samples.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "scheduler/rows/draw_search.h"
#include "scheduler/rows/row_scanner.h"

namespace outrider {

class HostRowScanner : public RowScanner {
 public:
  void hold(std::span<const RowView> rows) override;
  void answer(RowQuestions& questions) override;

 protected:
  // Calls body(begin, end), which does not throw, for disjoint ranges that make up 0 .. count and
  // returns when all are done. Whoever has threads calls it for several at once: no answer hangs on
  // how they are cut.
  using RangeBody = std::function<void(int64_t begin, int64_t end)>;
  virtual void for_range(int64_t count, const RangeBody& body) { body(0, count); }

 private:
  void answer_rows(RowQuestions& questions, int32_t first, int32_t last);

  std::span<const RowView> rows_;
  std::vector<RowPeaks> peaks_;  // by row; empty until somebody has looked at all of it
  std::vector<std::vector<BandQuestion::Entry>> inside_;  // of each question about bands
  std::vector<int32_t> asked_;  // the rows that the questions at hand name, ascending
};

}  // namespace outrider
