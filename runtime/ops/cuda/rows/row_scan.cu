// See gpu/row_scan.h: a launch for every kind of question that was asked.
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/rows/row_chunk.h"

namespace outrider::gpu {

void scan_rows(Stream& stream, const RowTasks& tasks) {
  if (tasks.num_reads > 0 && tasks.most_values > 0) read_values(stream, tasks);
  if (tasks.num_bests > 0) find_best(stream, tasks);
  if (tasks.num_sums > 0) sum_rows(stream, tasks);
  if (tasks.num_tops > 0) find_top(stream, tasks);
  if (tasks.num_bands > 0) fill_bands(stream, tasks);
  if (tasks.num_ranks > 0) rank_tokens(stream, tasks);
}

}  // namespace outrider::gpu
