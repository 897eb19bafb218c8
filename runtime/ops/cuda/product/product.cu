// The products by name: what their arguments must be, and which kernels take them.
#include <string>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/product/product_kernels.h"

namespace outrider::gpu {
namespace {

[[noreturn]] void refuse(const ProductArgs& args, const std::string& why) {
  throw Error("product of a [" + std::to_string(args.weights.n_out) + ", " +
              std::to_string(args.weights.n_in) + "] matrix: " + why);
}

void check_slices(const ProductArgs& args) {
  const Matrix& weights = args.weights;
  const int32_t count = weights.num_slices;
  if (count != 1 && count != 2 && count != 4 && count != 8) {
    refuse(args, std::to_string(count) + " slices, only 1, 2, 4 or 8");
  }
  int32_t before = 0;
  for (int32_t s = 0; s < count; ++s) {
    const int32_t end = weights.slice_ends[s];
    if (end < before || end > weights.n_in) {
      refuse(args, "slice " + std::to_string(s) + " ends at " + std::to_string(end));
    }
    if (args.in.type != Type::kF32 && end % kTileInner != 0 && s + 1 < count) {
      refuse(args,
             "slice " + std::to_string(s) + " ends at " + std::to_string(end) +
                 ", only at multiples of " + std::to_string(kTileInner));
    }
    before = end;
  }
  if (before != weights.n_in) refuse(args, "the last slice ends at " + std::to_string(before));
}

void check(const ProductArgs& args) {
  const Matrix& weights = args.weights;
  if (args.in.n != weights.n_in) {
    refuse(args, "the activations have " + std::to_string(args.in.n) + " inputs");
  }
  const bool is_narrow = weights.type == Type::kE4M3;
  if (args.in.type != (is_narrow ? Type::kBF16 : weights.type)) {
    refuse(args, "the activations are of another type than the weights take");
  }
  if (is_narrow != (weights.scales != nullptr)) {
    refuse(args, is_narrow ? "8-bit weights without scales" : "scales of weights that have none");
  }
  if (args.max_rows < 0) refuse(args, std::to_string(args.max_rows) + " rows");
  check_slices(args);
}

void check_units(const ProductArgs& args, const Activations& out) {
  if (args.weights.n_out == 2 * out.n && out.n % 8 == 0) return;
  refuse(args, std::to_string(out.n) + " units of gate and up, which go in eights");
}

template <typename Job>
void run(Stream& stream, const Job& job, int32_t max_rows) {
  if (max_rows == 0 || job.product.weights.n_out == 0) return;
  switch (job.product.weights.type) {
    case Type::kF32:
      return product_f32(stream, job);
    case Type::kBF16:
      return product_bf16(stream, job);
    case Type::kF16:
      return product_f16(stream, job);
    case Type::kE4M3:
      return product_e4m3(stream, job);
  }
}

void run_experts(Stream& stream, const ExpertJob& job) {
  const int32_t tile_rows = job.rows.tile_rows;
  if (tile_rows != kTileRows && tile_rows != 4 * kTileRows) {
    refuse(job.product, std::to_string(tile_rows) + " rows of an expert at once, only 8 or 32");
  }
  run(stream, job, job.rows.max_rows);
}

}  // namespace

void store_product(Stream& stream, const ProductArgs& args, const StoreArgs& to) {
  check(args);
  run(stream, ProductJob{.product = args, .ending = Ending::kStore, .store = to}, args.max_rows);
}

void qkv_product(Stream& stream, const ProductArgs& args, const QkvArgs& to) {
  check(args);
  const KvView& kv = to.kv;
  if (args.weights.n_out != (to.n_heads + 2 * kv.n_kv_heads) * kv.head_dim) {
    refuse(args, "its outputs are not the heads of queries, keys and values");
  }
  if (kv.head_dim % 16 != 0 || to.rotary.rotary_dim != kv.head_dim) {
    refuse(args,
           "heads of " + std::to_string(kv.head_dim) + " of which " +
               std::to_string(to.rotary.rotary_dim) + " turn: only whole multiples of 16");
  }
  run(stream, ProductJob{.product = args, .ending = Ending::kQkv, .qkv = to}, args.max_rows);
}

void swiglu_product(Stream& stream, const ProductArgs& args, const SwigluArgs& to) {
  check(args);
  check_units(args, to.out);
  run(stream, ProductJob{.product = args, .ending = Ending::kSwiglu, .swiglu = to}, args.max_rows);
}

void expert_gate_up(Stream& stream, const ProductArgs& args, const ExpertGateUpArgs& to) {
  check(args);
  check_units(args, to.out);
  if (to.rows.tiles == nullptr) refuse(args, "rows that are not in tiles of experts");
  run_experts(stream, {.product = args, .rows = to.rows, .gate_up = to});
}

void expert_down(Stream& stream, const ProductArgs& args, const ExpertDownArgs& to) {
  check(args);
  run_experts(stream, {.product = args, .rows = to.rows, .is_down = true, .down = to});
}

}  // namespace outrider::gpu
