// Products in f32, for checks against the CPU backend, whose bits they have: per slice and stretch
// of 256 inputs one chain of fused multiply-adds in ascending order, the stretches added one by
// one, the slices folded in the tree. A block has 32 packed rows of the weights and 16 rows of the
// step, a thread one pair of outputs of one row.
#include "runtime/ops/cuda/product/product_kernels.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kBlocksPerProcessor = 2;  // else ptxas spills, to have room for more of them
constexpr int32_t kBlockOuts = 32;
constexpr int32_t kBlockRows = 16;
constexpr int32_t kPart = 32;      // inputs in shared memory at a time
constexpr int32_t kStretch = 256;  // runtime/ops/cpu: kInnerChunk
constexpr int32_t kStride = kPart + 1;
constexpr size_t kSharedBytes = sizeof(float) * kStride * (kBlockOuts + kBlockRows);

struct Pair {
  float low = 0.0f;
  float high = 0.0f;
};

// Inputs [begin, begin + count) of `rows` rows, which row_of() names; what is not there (-1) is
// zero.
template <typename RowOf>
OUTRIDER_DEVICE void load_part(float* shared,
                               const float* from,
                               int32_t n,
                               int32_t rows,
                               int32_t begin,
                               int32_t count,
                               const RowOf& row_of) {
  for (auto i = static_cast<int32_t>(thread_id()); i < rows * kPart;
       i += static_cast<int32_t>(kThreads)) {
    const int32_t row = row_of(i / kPart);
    const int32_t at = i % kPart;
    shared[i / kPart * kStride + at] =
        row >= 0 && at < count ? from[static_cast<size_t>(row) * static_cast<size_t>(n) +
                                      static_cast<size_t>(begin + at)]
                               : 0.0f;
  }
}

// Where this thread's two outputs and its row lie in the block.
struct ThreadPlace {
  int32_t out;  // of the first output; the other is 8 further
  int32_t row;
};
OUTRIDER_DEVICE ThreadPlace thread_place() {
  const auto thread = static_cast<int32_t>(thread_id());
  return {thread / 8 % 2 * 16 + thread % 8, thread / 16};
}

// Which outputs and rows a block has.
struct BlockPlace {
  int32_t first_out;
  int32_t first_row;
};

// One chain over [begin, end), at most kStretch inputs.
template <typename Rows>
OUTRIDER_DEVICE Pair sum_stretch(const ProductArgs& args,
                                 const Rows& rows,
                                 const BlockPlace& block,
                                 int32_t begin,
                                 int32_t end) {
  auto* const weights = shared_memory<float>();
  float* const inputs = weights + kBlockOuts * kStride;
  const Matrix& matrix = args.weights;
  const ThreadPlace place = thread_place();
  const auto weight_row = [&](int32_t i) {
    const int32_t out = block.first_out + i;
    return out < matrix.n_out ? rows.first_weight_row() + out : -1;
  };
  const auto input_row = [&](int32_t i) {
    const int32_t row = block.first_row + i;
    return row < rows.num_rows ? rows.in_row(row) : -1;
  };
  Pair sum;
  for (int32_t part = begin; part < end; part += kPart) {
    const int32_t count = end - part < kPart ? end - part : kPart;
    sync_block();  // the part before has been read
    const auto* const of_weights = static_cast<const float*>(matrix.data);
    load_part(weights, of_weights, matrix.n_in, kBlockOuts, part, count, weight_row);
    const auto* const of_inputs = static_cast<const float*>(args.in.data);
    load_part(inputs, of_inputs, matrix.n_in, kBlockRows, part, count, input_row);
    sync_block();
    for (int32_t k = 0; k < count; ++k) {
      const float input = inputs[place.row * kStride + k];
      sum.low = fused_multiply_add(weights[place.out * kStride + k], input, sum.low);
      sum.high = fused_multiply_add(weights[(place.out + 8) * kStride + k], input, sum.high);
    }
  }
  return sum;
}

// The tree over slices, as a binary counter adds (product_wide.h).
struct PairFold {
  Pair waiting[3];
  // After the last slice: what they all make.
  OUTRIDER_DEVICE Pair add(int32_t slice, Pair now) {
    bool is_left = false;
    OUTRIDER_UNROLL
    for (int level = 0; level < 3; ++level) {
      if (is_left) continue;
      is_left = (slice >> level & 1) == 0;
      Pair& other = waiting[level];
      if (is_left) {
        other = now;
      } else {
        now = {exact_add(other.low, now.low), exact_add(other.high, now.high)};
      }
    }
    return now;
  }
};

// A block's outputs of its rows, of which there is one at least.
template <typename Rows>
OUTRIDER_DEVICE void multiply_rows(const ProductArgs& args,
                                   const Rows& rows,
                                   const BlockPlace& block) {
  const Matrix& matrix = args.weights;
  const ThreadPlace place = thread_place();
  const int32_t out = block.first_out + place.out;
  const int32_t row = block.first_row + place.row;
  const bool is_there = row < rows.num_rows && out < matrix.n_out;
  const LeafTerms low_terms = rows.terms(out);
  const LeafTerms high_terms = rows.terms(out + 8);
  PairFold fold;
  Pair now;
  int32_t begin = 0;
  OUTRIDER_ROLLED
  for (int32_t slice = 0; slice < matrix.num_slices; ++slice) {
    const int32_t end = matrix.slice_ends[slice];
    now = {};
    OUTRIDER_ROLLED
    for (; begin < end; begin += kStretch) {
      const int32_t stretch_end = begin + kStretch < end ? begin + kStretch : end;
      const Pair sum = sum_stretch(args, rows, block, begin, stretch_end);
      now = {exact_add(now.low, sum.low), exact_add(now.high, sum.high)};
    }
    begin = end;
    now = {make_leaf(low_terms, slice, now.low), make_leaf(high_terms, slice, now.high)};
    if (rows.keeps_slices() && is_there) rows.store_slice(out, row, slice, now.low, now.high);
    now = fold.add(slice, now);
  }
  if (is_there && !rows.keeps_slices()) rows.finish_folded(out, row, now.low, now.high);
}

OUTRIDER_KERNEL(kThreads, kBlocksPerProcessor) void f32_product(ProductJob job) {
  wait_for_predecessor();
  let_successor_begin();
  const BlockPlace block = {static_cast<int32_t>(block_id().x) * kBlockOuts,
                            static_cast<int32_t>(block_id().y) * kBlockRows};
  const WholeRows rows = {job, rows_of(job.product)};
  if (block.first_row >= rows.num_rows) return;
  multiply_rows(job.product, rows, block);
}

OUTRIDER_KERNEL(kThreads, kBlocksPerProcessor) void f32_experts(ExpertJob job) {
  wait_for_predecessor();
  let_successor_begin();
  const int32_t num_tiles = num_expert_tiles(job);
  const BlockPlace block = {static_cast<int32_t>(block_id().x) * kBlockOuts,
                            static_cast<int32_t>(block_id().z) * kBlockRows};
  OUTRIDER_ROLLED
  for (auto tile = static_cast<int32_t>(block_id().y); tile < num_tiles;
       tile += static_cast<int32_t>(num_blocks().y)) {
    const TileOfRows rows(job, tile);
    if (block.first_row < rows.num_rows) multiply_rows(job.product, rows, block);
  }
}

}  // namespace

void product_f32(Stream& stream, const ProductJob& job) {
  const ProductArgs& args = job.product;
  launch(stream,
         f32_product,
         {.grid = {static_cast<uint32_t>(whole_tiles(args.weights.n_out, kBlockOuts)),
                   static_cast<uint32_t>(whole_tiles(args.max_rows, kBlockRows))},
          .threads = kThreads,
          .shared_bytes = kSharedBytes,
          .overlaps = true},
         job);
}

void product_f32(Stream& stream, const ExpertJob& job) {
  const auto blocks = static_cast<uint32_t>(whole_tiles(job.product.weights.n_out, kBlockOuts));
  launch(stream,
         f32_experts,
         {.grid = {blocks,
                   tiles_at_once(job, blocks),
                   static_cast<uint32_t>(whole_tiles(job.rows.tile_rows, kBlockRows))},
          .threads = kThreads,
          .shared_bytes = kSharedBytes,
          .overlaps = true},
         job);
}

}  // namespace outrider::gpu
