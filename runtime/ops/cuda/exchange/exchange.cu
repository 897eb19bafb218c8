// Sums over ranks by their GPUs themselves: exchange_protocol.h in blocks of threads, alone or with
// the norm that wants the sum.
#include "runtime/ops/cuda/exchange/exchange_protocol.h"
#include "runtime/ops/cuda/exchange/norm_row.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kSumThreads = 256;
// That find room on a multiprocessor: what ranks that share a GPU stand on (docs/gpu.md).
constexpr uint32_t kBlocksAtOnce = 2;
// Of a row, where there are blocks for it: one multiprocessor alone would be what a row waits for.
constexpr uint32_t kMostPieces = 8;

using Round = ExchangeRound<WatchedMemory>;

OUTRIDER_DEVICE ExchangeThread this_thread(uint32_t of) { return {block_id().x, thread_id(), of}; }

// By all threads of the block.
OUTRIDER_DEVICE void end_round(Round& round) {
  sync_block();
  if (thread_id() == 0) round.end();
}

// Whether this block's piece of the row was the last one; what all blocks put is then seen.
OUTRIDER_DEVICE bool ends_row(ExchangeState* state,
                              uint32_t row,
                              uint32_t num_pieces,
                              uint32_t* flag) {
  sync_block();
  if (num_pieces == 1) return true;
  if (thread_id() == 0) {
    uint32_t* const num_done = &state->num_done[row];
    publish_writes();
    const bool is_last = atomic_next(num_done) + 1 == num_pieces;
    if (is_last) WatchedMemory().store(num_done, 0);  // for the next launch
    publish_writes();
    *flag = is_last ? 1 : 0;
  }
  sync_block();
  return *flag != 0;
}

OUTRIDER_DEVICE Vector4 load_part(const float* from, uint32_t left) {
  if (left >= 4) return *reinterpret_cast<const Vector4*>(from);
  return {bits_of(from[0]), left > 1 ? bits_of(from[1]) : 0, left > 2 ? bits_of(from[2]) : 0, 0};
}
OUTRIDER_DEVICE void store_sum(float* to, const Vector4& sum, uint32_t left) {
  to[0] = float_of(sum.x);
  if (left > 1) to[1] = float_of(sum.y);
  if (left > 2) to[2] = float_of(sum.z);
  if (left > 3) to[3] = float_of(sum.w);
}

OUTRIDER_KERNEL(kSumThreads, kBlocksAtOnce) void sum_values(ExchangeSumArgs args) {
  wait_for_predecessor();
  if (!args.view.shares_device) let_successor_begin();
  const auto num_vectors = static_cast<uint32_t>((args.count + 3) / 4);
  const auto begin_of = [&](uint32_t block) {
    return static_cast<uint32_t>(uint64_t{num_vectors} * block / num_blocks().x);
  };
  const ExchangeRow row = {begin_of(block_id().x),
                           begin_of(block_id().x + 1) - begin_of(block_id().x)};
  const size_t first = size_t{row.first} * 4;
  float* const values = args.values + first;
  const auto count = static_cast<uint32_t>(args.count - first);
  const auto load = [=](uint32_t v) { return load_part(values + size_t{v} * 4, count - v * 4); };
  const auto keep = [=](uint32_t v, const Vector4& sum) {
    store_sum(values + size_t{v} * 4, sum, count - v * 4);
  };
  Round round(args.view, args.kind, this_thread(kSumThreads), num_vectors);
  round.send(row, load);
  round.clear();
  round.fold_share(row, load);
  round.collect(row, load, keep);
  end_round(round);
}

// The rows of a step, each in as many pieces as there are blocks for.
struct Pieces {
  const ExchangeNormArgs& args;
  uint32_t num_rows;
  uint32_t vectors;  // of a row
  uint32_t per_row;

  OUTRIDER_DEVICE Pieces(const ExchangeNormArgs& of, uint32_t rows)
      : args(of), num_rows(rows), vectors(static_cast<uint32_t>(of.norm.out.n) / 4) {
    const uint32_t blocks = num_blocks().x / num_rows;
    per_row = blocks == 0 ? 1 : blocks < kMostPieces ? blocks : kMostPieces;
  }
  OUTRIDER_DEVICE uint32_t count() const { return num_rows * per_row; }
  OUTRIDER_DEVICE uint32_t row_of(uint32_t i) const { return i / per_row; }
  // In a slot.
  OUTRIDER_DEVICE ExchangeRow place(uint32_t i) const {
    const uint32_t begin = begin_in_row(i % per_row);
    return {row_of(i) * vectors + begin, begin_in_row(i % per_row + 1) - begin};
  }
  // In the residual stream and in the rank's part: the first element.
  OUTRIDER_DEVICE uint32_t row_at(uint32_t row) const {
    const NormArgs& norm = args.norm;
    const auto of_step = norm.selected ? static_cast<uint32_t>(norm.step.logit_rows[row]) : row;
    return of_step * vectors * 4;
  }
  OUTRIDER_DEVICE uint32_t at(uint32_t i) const {
    return row_at(row_of(i)) + begin_in_row(i % per_row) * 4;
  }

 private:
  OUTRIDER_DEVICE uint32_t begin_in_row(uint32_t piece) const { return vectors * piece / per_row; }
};

// What `norm` does with a row that is whole.
OUTRIDER_DEVICE void norm_row(const NormArgs& norm, uint32_t row, const float* x, float* values) {
  const auto n = static_cast<uint32_t>(norm.out.n);
  float squares = 0.0f;
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
    values[i] = x[i];
    squares = fused_multiply_add(values[i], values[i], squares);
  }
  store_normed_row(norm, static_cast<int32_t>(row), values, squares, norm.weight);
}

OUTRIDER_KERNEL(kNormThreads, kBlocksAtOnce)
void sum_and_norm(ExchangeNormArgs args) {
  wait_for_predecessor();
  if (!args.view.shares_device) let_successor_begin();
  const NormArgs& norm = args.norm;
  const StepCounts& counts = *norm.step.counts;
  const auto num_rows =
      static_cast<uint32_t>(norm.selected ? counts.num_logit_rows : counts.num_rows);
  if (num_rows == 0) return;  // on all ranks alike: no round
  const Pieces pieces(args, num_rows);
  const auto part_of = [&](uint32_t i) {
    const float* const from = args.part + pieces.at(i);
    return [from](uint32_t v) { return load_part(from + v * 4, 4); };
  };
  // Rows that were picked leave the residual stream as it is.
  float* const kept = norm.selected ? args.part : norm.x;

  Round round(args.view, args.kind, this_thread(kNormThreads), num_rows * pieces.vectors);
  const uint32_t first = block_id().x;
  const uint32_t step = num_blocks().x;
  for (uint32_t i = first; i < pieces.count(); i += step) round.send(pieces.place(i), part_of(i));
  round.clear();
  if (first >= pieces.count()) round.prefetch();
  for (uint32_t i = first; i < pieces.count(); i += step) {
    round.fold_share(pieces.place(i), part_of(i));
  }
  auto* const values = shared_memory<float>();  // [n], then what store_normed_row() wants
  auto* const flag = reinterpret_cast<uint32_t*>(values + norm.out.n + kNormWarps);
  for (uint32_t i = first; i < pieces.count(); i += step) {
    const uint32_t begin = pieces.at(i);
    round.collect(pieces.place(i), part_of(i), [&](uint32_t v, const Vector4& sum) {
      const uint32_t at = begin + v * 4;
      store_sum(kept + at, sum_of(load_part(norm.x + at, 4), sum), 4);
    });
    const uint32_t row = pieces.row_of(i);
    if (!ends_row(args.view.state, row, pieces.per_row, flag)) continue;
    norm_row(norm, row, kept + pieces.row_at(row), values);
  }
  end_round(round);
}

}  // namespace

void exchange_sum(Stream& stream, const ExchangeSumArgs& args) {
  launch(stream,
         sum_values,
         {.grid = {args.view.num_blocks},
          .threads = kSumThreads,
          .overlaps = true,
          .blocks_wait = true},
         args);
}

void exchange_norm(Stream& stream, const ExchangeNormArgs& args) {
  launch(stream,
         sum_and_norm,
         {.grid = {args.view.num_blocks},
          .threads = kNormThreads,
          .shared_bytes = norm_shared_bytes(args.norm.out.n) + sizeof(uint32_t),
          .overlaps = true,
          .blocks_wait = true},
         args);
}

}  // namespace outrider::gpu
