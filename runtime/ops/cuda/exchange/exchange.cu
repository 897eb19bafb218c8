// Sums over ranks by their GPUs themselves: exchange_protocol.h in blocks of threads, alone or with
// the norm that wants the sum.
#include <algorithm>

#include "runtime/ops/cuda/exchange/exchange_protocol.h"
#include "runtime/ops/cuda/exchange/norm_row.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kSumThreads = 256;
constexpr uint32_t kLineBytes = 128;

using Round = ExchangeRound<WatchedMemory>;

OUTRIDER_DEVICE uint32_t thread_of_all() { return block_id().x * num_threads() + thread_id(); }
OUTRIDER_DEVICE uint32_t num_of_all() { return num_blocks().x * num_threads(); }

OUTRIDER_DEVICE void prefetch_next(const ExchangeKind& kind) {
  const auto* const bytes = static_cast<const unsigned char*>(kind.next);
  for (size_t at = size_t{thread_of_all()} * kLineBytes; at < kind.next_bytes;
       at += size_t{num_of_all()} * kLineBytes) {
    prefetch_line(bytes + at);
  }
}

// By all threads of the block; the last block to come ends the round.
OUTRIDER_DEVICE void end_round(Round& round, ExchangeState* state, uint32_t used_vectors) {
  round.clear(thread_of_all(), num_of_all());
  sync_block();
  if (thread_id() != 0) return;
  publish_writes();
  if (atomic_next(&state->num_done) != num_blocks().x - 1) return;
  WatchedMemory().store(&state->num_done, 0);
  round.end(used_vectors);
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

OUTRIDER_KERNEL(kSumThreads) void sum_values(ExchangeSumArgs args) {
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
  Round round(args.view, args.kind, thread_id(), kSumThreads);
  round.send(row, load);
  prefetch_next(args.kind);
  round.fold_share(row, load);
  round.collect(row, load, keep);
  end_round(round, args.view.state, num_vectors);
}

OUTRIDER_KERNEL(kNormThreads) void sum_and_norm(ExchangeNormArgs args) {
  wait_for_predecessor();
  if (!args.view.shares_device) let_successor_begin();
  const NormArgs& norm = args.norm;
  const StepCounts& counts = *norm.step.counts;
  const auto num_rows =
      static_cast<uint32_t>(norm.selected ? counts.num_logit_rows : counts.num_rows);
  if (num_rows == 0) return;  // on all ranks alike: no round
  const auto n = static_cast<uint32_t>(norm.out.n);
  const auto step_row = [&](uint32_t row) {
    return size_t{norm.selected ? static_cast<uint32_t>(norm.step.logit_rows[row]) : row} * n;
  };
  const auto part_of = [&](uint32_t row) {
    const float* const from = args.part + step_row(row);
    return [from](uint32_t v) { return load_part(from + size_t{v} * 4, 4); };
  };
  const auto place = [&](uint32_t row) { return ExchangeRow{row * (n / 4), n / 4}; };

  Round round(args.view, args.kind, thread_id(), kNormThreads);
  const uint32_t first_row = block_id().x;
  const uint32_t step = num_blocks().x;
  for (uint32_t r = first_row; r < num_rows; r += step) round.send(place(r), part_of(r));
  prefetch_next(args.kind);
  for (uint32_t r = first_row; r < num_rows; r += step) round.fold_share(place(r), part_of(r));
  auto* const values = shared_memory<float>();  // [n], then what store_normed_row() wants
  for (uint32_t r = first_row; r < num_rows; r += step) {
    sync_block();  // the row before is read
    round.collect(place(r), part_of(r), [&](uint32_t v, const Vector4& sum) {
      store_sum(values + size_t{v} * 4, sum, 4);
    });
    sync_block();
    float* const x = norm.x + step_row(r);
    float squares = 0.0f;
    for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
      const float value = exact_add(x[i], values[i]);
      if (!norm.selected) x[i] = value;
      values[i] = value;
      squares = fused_multiply_add(value, value, squares);
    }
    store_normed_row(norm, static_cast<int32_t>(r), values, squares, norm.weight);
  }
  end_round(round, args.view.state, num_rows * (n / 4));
}

}  // namespace

void exchange_sum(Stream& stream, const ExchangeSumArgs& args) {
  constexpr size_t kValuesPerBlock = size_t{kSumThreads} * 4;
  const size_t blocks = (args.count + kValuesPerBlock - 1) / kValuesPerBlock;
  launch(stream,
         sum_values,
         {.grid = {static_cast<uint32_t>(std::min<size_t>(blocks, args.view.max_blocks))},
          .threads = kSumThreads,
          .overlaps = true},
         args);
}

void exchange_norm(Stream& stream, const ExchangeNormArgs& args) {
  const auto max_rows = static_cast<uint32_t>(args.norm.max_rows);
  launch(stream,
         sum_and_norm,
         {.grid = {std::min(max_rows, args.view.max_blocks)},
          .threads = kNormThreads,
          .shared_bytes = norm_shared_bytes(args.norm.out.n),
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
