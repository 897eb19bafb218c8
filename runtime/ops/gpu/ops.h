// The vocabulary of the forward pass on a GPU: what runtime/ops/ops.h is for the CPU, with the
// fusions that a GPU wants. Declares arguments only; the functions are the fields of OpTable, which
// the CUDA shared object and the emulated device fill with the same kernels. Every op queues its
// work on a stream and returns; every op is row-invariant: a row's result has the same bits
// whatever other rows share the step (docs/gpu.md).
//
// Sizes of a launch may depend on max_rows only (a graph is recorded once for each); how many rows
// there really are stands in StepCounts, in device memory. What an op writes for rows beyond them
// is undefined and never looked at.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/tiles.h"
#include "runtime/ops/tensor.h"

namespace outrider::gpu {

enum class Type : uint8_t { kF32, kBF16, kF16, kE4M3 };
constexpr size_t type_bytes(Type type) {
  return type == Type::kF32 ? 4 : type == Type::kE4M3 ? 1 : 2;
}

// ---- the step
struct StepCounts {
  int32_t num_rows = 0;
  int32_t num_logit_rows = 0;
  int32_t num_attention_items = 0;
};

// A piece of attention's work: up to kMaxItemRows neighbouring rows of one sequence. Made on the
// host (gpu/attention_plan.h).
struct AttentionItem {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t sequence = 0;
  int32_t num_splits = 0;  // of the item's last row: those its positions reach into, or more
  int32_t first_new = 0;   // the first position that the step stores of the sequence; 0 will do
};
inline constexpr int32_t kMaxItemRows = 32;
// Attention's sum over positions is cut at multiples of this, whatever rows share the step.
inline constexpr int32_t kSplitPositions = 256;

// Device memory, at the same addresses for a model's life; filled by one copy at a step's start.
// Launches read it before the launch before has ended, so that no launch may write it.
struct StepView {
  const StepCounts* counts = nullptr;
  const int32_t* tokens = nullptr;           // [max rows]
  const int32_t* positions = nullptr;        // [max rows]
  const int32_t* sequence_of_row = nullptr;  // [max rows]
  const int32_t* block_tables = nullptr;     // [max sequences, table_stride]
  int32_t table_stride = 0;                  // blocks per sequence
  const int32_t* logit_rows = nullptr;       // [max logit rows], ascending
  const AttentionItem* attention_items = nullptr;
};

// ---- activations
// What goes into a product. 16-bit: in the order of the matrix instruction's fragments, see
// activation_offset() in gpu/tiles.h, activation_elements() of them, inner dimension padded with
// zeros to a multiple of kTileInner (zeroed once by whoever allocates them: ops write nothing else
// there); f32: row-major [rows, n].
struct Activations {
  void* data = nullptr;
  Type type = Type::kBF16;
  int32_t n = 0;  // inner dimension
};

struct EmbedArgs {
  float* out = nullptr;         // [max_rows, n]
  const void* table = nullptr;  // [n_rows, n] row-major; ids outside [first_id, first_id + n_rows)
                                // give zeros
  Type type = Type::kBF16;
  bool is_packed = false;  // the table is the head, packed for products, to which it is tied
  int32_t n_rows = 0;
  int32_t n = 0;
  int32_t first_id = 0;
  int32_t max_rows = 0;
  StepView step;
};

// x = x * factor, and where there is a table of learned positions plus its row.
struct AddPositionsArgs {
  float* x = nullptr;            // [max_rows, n]
  const float* table = nullptr;  // [positions, n] or null
  float factor = 1.0f;
  int32_t n = 0;
  int32_t max_rows = 0;
  StepView step;
};

// x += part where there is one, then out = x / sqrt(mean(x^2) + eps) * weight. With `selected` the
// rows are the step's logit rows: out row j is of x row logit_rows[j], and x is left as it is. The
// weight is read before the launch before has ended.
struct NormArgs {
  Activations out;
  float* x = nullptr;             // [max_rows, n]
  const float* part = nullptr;    // [max_rows, n] or null
  const float* weight = nullptr;  // [n]
  float eps = 0.0f;
  bool selected = false;
  int32_t max_rows = 0;
  StepView step;
};

// The same with what other families' norms have: x += factor * part, or factor times part's own rms
// norm by part_weight; then out = a norm of x plus bias, less the mean if it is a layer norm (Ba et
// al. 2016). Without norm.weight out = x; without norm.out.data (out.n says how long rows are)
// there is no output. Behind a part, x is multiplied by `scale`.
struct AddNormArgs {
  NormArgs norm;
  const float* part_weight = nullptr;  // [n] or null
  float factor = 1.0f;
  float scale = 1.0f;
  bool subtracts_mean = false;
  const float* bias = nullptr;  // [n] or null
};

// ---- products
// A weight matrix in device memory, packed for the kernels (gpu/tiles.h); kF32: row-major [n_out,
// n_in], rows in the packed order (weight_row()) all the same. Activations in front of kE4M3 are
// kBF16, else of the same type.
struct Matrix {
  const void* data = nullptr;
  const float* scales = nullptr;  // [n_out] of kE4M3 in the packed order, else null
  Type type = Type::kBF16;
  int32_t n_out = 0;  // outputs, before padding
  int32_t n_in = 0;
  int32_t num_slices = 0;  // see SliceEnds; f32 has the CPU backend's bits with its slices
  int32_t slice_ends[kMaxSlices] = {};
};

// Keys and values of one layer: [num_blocks, n_kv_heads, block_size, head_dim] each. Of latent
// attention the values are the keys.
struct KvView {
  void* keys = nullptr;
  void* values = nullptr;
  Type type = Type::kBF16;
  int32_t num_blocks = 0;
  int32_t n_kv_heads = 0;
  int32_t block_size = 0;
  int32_t head_dim = 0;
};

// How rows turn with their position: angles[position] holds rotary_dim / 2 cosines, then sines.
struct RotaryView {
  const float* angles = nullptr;  // [max positions, rotary_dim]
  int32_t rotary_dim = 0;
};

// out[r, o] = sum_i in[r, i] w[o, i] + bias[o]; the number of rows from counts->num_rows, or
// num_logit_rows when `selected`. Scales and bias join the slices before these are folded, the bias
// the first one. Weights are read before the launch before has ended, so that one may not be what
// writes them. Queueing one throws Error when the arguments do not fit each other.
struct ProductArgs {
  Activations in;
  Matrix weights;
  const float* bias = nullptr;  // [n_out] in the packed order, or null
  bool selected = false;
  int32_t max_rows = 0;
  StepView step;
};
// out: [max_rows, n_out] row-major.
struct StoreArgs {
  float* out = nullptr;
};
// Weights in kHalves order over head_dim, which is a multiple of 16 and the rotary_dim: q and k
// heads are turned; q goes to `queries` [max_rows, n_heads, head_dim] of kv.type, k and v to their
// slots of the pages.
struct QkvArgs {
  void* queries = nullptr;
  int32_t n_heads = 0;
  KvView kv;
  RotaryView rotary;
};
// Weights in kPairs order: gate and up, out.n of each, a multiple of 8. out = silu(gate) * up.
struct SwigluArgs {
  Activations out;
};

// out[r, i] = activation(x[r, i]), times x[r, out.n + i] where it is gated, or times factors[r, i].
struct ActivateArgs {
  Activations out;
  const float* x = nullptr;  // [max_rows, out.n] or [max_rows, 2 out.n]
  ops::ActivationKind kind = ops::ActivationKind::kSilu;
  bool is_gated = false;
  int32_t max_rows = 0;
  StepView step;
  const float* factors = nullptr;  // rows of them `stride` apart, or null
  int32_t factors_stride = 0;
};

// Per-layer inputs (Gemma 3n and 4), of each row and layer a vector: vectors = sqrt(1/2) (scale *
// vectors + the rms norm of factor * projected).
struct PerLayerInputsArgs {
  float* vectors = nullptr;          // [max_rows, n_layers, dim]
  const float* projected = nullptr;  // the same: what the embedding adds
  const float* weight = nullptr;     // [dim]
  float scale = 1.0f;
  float factor = 1.0f;
  float eps = 0.0f;
  int32_t n_layers = 0;
  int32_t dim = 0;
  int32_t max_rows = 0;
  StepView step;
};

// ---- queries, keys and values that products do not place
// What a norm of query and key heads spans: each head, with weights that all share, or a layer norm
// with its own; or all heads of the model, of whose squares `squares` knows the sums.
enum class HeadNorm : uint8_t { kHead, kOwnHead, kAllHeads };
// Of the whole model.
struct AllHeads {
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
};

// sums[r, h] = the sum of squares of head h of all, queries then keys; zero for other ranks' heads,
// so that the sum over ranks is exact.
struct HeadSquaresArgs {
  float* sums = nullptr;       // [max_rows, all heads + all KV heads]
  const float* qkv = nullptr;  // as RopeWriteArgs has it
  AllHeads all;
  int32_t first_head = 0;  // of this rank's
  int32_t first_kv_head = 0;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
  int32_t n_summed_kv_heads = 0;  // 0 where another rank sums them
  int32_t head_dim = 0;
  int32_t max_rows = 0;
  StepView step;
};

// The same as QkvArgs does, for models with norms between or other ropes: qkv [max_rows, (n_heads +
// 2 kv) * head_dim] row-major as StoreArgs left it. A rotary_dim of 0 turns nothing; without KV
// heads there are queries alone.
struct RopeWriteArgs {
  const float* qkv = nullptr;
  const float* q_norm = nullptr;  // [head_dim], [heads, head_dim] of other kinds, or null
  const float* k_norm = nullptr;
  const float* v_norm = nullptr;  // [head_dim] or null: each head's
  float eps = 0.0f;
  QkvArgs to;
  int32_t max_rows = 0;
  StepView step;
  HeadNorm norm = HeadNorm::kHead;
  const float* squares = nullptr;  // of kAllHeads: HeadSquaresArgs::sums, summed over ranks
  AllHeads all;
  bool interleaved = false;              // pairs are (0, 1), (2, 3), ...
  const float* query_factors = nullptr;  // [max positions] on queries, or null
  bool k_is_v = false;  // qkv has no values: they are the keys, without k_norm and turn
};

// ---- latent attention (MLA, DeepSeek-V2 2405.04434), beside attention itself
// out[r, h, o] = sum_i in[r, h, i] w[h, o, i]: each head has a matrix of its own.
struct HeadMatrix {
  const void* data = nullptr;  // [heads, n_out, n_in] row-major
  Type type = Type::kBF16;     // not kE4M3
  int32_t n_out = 0;
  int32_t n_in = 0;
};
struct HeadProductArgs {
  const float* in = nullptr;  // of row 0 and head 0
  int32_t row_stride = 0;     // of `in`, from row to row
  int32_t head_stride = 0;
  HeadMatrix weights;
  int32_t n_heads = 0;
  // To a product's input of n_heads * n_out; where that has no data, to the last n_out numbers of
  // queries, as LatentWriteArgs has them.
  Activations out;
  void* queries = nullptr;
  Type query_type = Type::kBF16;
  int32_t query_dim = 0;
  int32_t max_rows = 0;
  StepView step;
};

// Turns the last rotary_dim numbers of each query and puts them in front of what HeadProductArgs
// left; turns the key's first, norms the latent behind them, and puts both to their slot.
struct LatentWriteArgs {
  const float* queries = nullptr;  // [max_rows, n_heads, query_dim]
  int32_t query_dim = 0;
  const float* keys = nullptr;    // [max_rows, to.kv.head_dim]
  const float* k_norm = nullptr;  // [head_dim - rotary_dim]
  float eps = 0.0f;
  bool interleaved = false;
  QkvArgs to;  // queries [max_rows, n_heads, head_dim]; one KV head
  int32_t max_rows = 0;
  StepView step;
};

// ---- attention
// What becomes of an item's parts, one from each split. With many items one block goes through all
// splits of its item and folds as it goes; so the scratch memory stays small where rows are many.
// With few, every split has a block of its own, and a launch that follows folds the parts. Both
// fold in the same order with the same bits.
enum class AttentionFold : uint8_t { kNothing, kOneBlock, kNextLaunch };

// The scratch memory of a launch: f32 sums, then for each of them the largest score and the sum of
// weights.
struct AttentionScratch {
  AttentionFold fold = AttentionFold::kNothing;
  int32_t sum_slots = 0;    // [rows, query heads, slots, head_dim]
  int32_t state_slots = 0;  // [rows, query heads, slots, 2]
  size_t num_sums = 0;      // floats
  size_t num_states = 0;    // floats
};

// Causal, grouped KV heads, positions max(0, p - window + 1) .. p (window 0: all). out: [rows,
// n_heads * head_dim] as a product's input. Keys and values in front of an item's first_new are
// read before the launch before has ended: that one writes the step's own.
struct AttentionArgs {
  Activations out;
  const void* queries = nullptr;  // [max_rows, n_heads, head_dim] of kv.type
  int32_t n_heads = 0;
  float scale = 0.0f;
  int32_t window = 0;
  KvView kv;
  void* scratch = nullptr;  // attention_scratch_bound()
  AttentionScratch parts;   // where they lie in it; the op sees to that
  int32_t max_rows = 0;
  int32_t max_items = 0;   // of this launch
  int32_t max_splits = 0;  // of this launch: no row has more
  StepView step;
  // Of other families than llama's, without the matrix instruction: scores become
  // softcap * tanh(score / softcap) where that is not 0, then grow with the key's position by a
  // slope of the head (ALiBi, Press et al. 2021).
  float softcap = 0.0f;
  const float* slopes = nullptr;  // [n_heads] or null
  // A score of each head that joins the softmax and has no value (attention sinks).
  const float* sinks = nullptr;  // [n_heads] or null
};

struct BlockCopyArgs {
  KvView kv;
  int32_t from = 0;
  int32_t to = 0;
};
struct BlockFillArgs {
  const KvView* kv = nullptr;  // [num_layers], device memory; a block is whole groups of 16 bytes
  int32_t num_layers = 0;
  const int32_t* blocks = nullptr;  // [num_blocks], pinned or device memory
  int32_t num_blocks = 0;
  bool poison = false;  // NaN instead of zeros, for tests
};

// logits = cap tanh(logits * factor / cap); cap 0: logits * factor. Of the step's logit rows.
struct BendLogitsArgs {
  float* logits = nullptr;  // [max_rows, n]
  int32_t n = 0;
  float factor = 1.0f;
  float cap = 0.0f;
  int32_t max_rows = 0;
  StepView step;
};

// Random weights, uniform in [-scale, scale], from a seed; for benchmarks. `count` elements of
// `type`, in memory order; an element depends on seed, scale and its index alone. Overlaps neither
// what is before nor what follows.
struct RandomArgs {
  void* out = nullptr;
  Type type = Type::kBF16;
  size_t count = 0;
  uint64_t seed = 0;
  float scale = 0.0f;
};

struct ExchangeSumArgs;   // gpu/exchange.h
struct ExchangeNormArgs;  // gpu/exchange.h
struct FoldPartsArgs;     // gpu/exchange.h
struct RouteArgs;         // gpu/experts.h
struct ExpertGateUpArgs;  // gpu/experts.h
struct ExpertDownArgs;    // gpu/experts.h
struct SumExpertsArgs;    // gpu/experts.h
struct RowTasks;          // gpu/row_scan.h
struct TakeTokensArgs;    // gpu/row_scan.h

// The one list of the ops: their names and what they are given beside the stream.
#define OUTRIDER_GPU_OPS(OP)                        \
  OP(embed, EmbedArgs)                              \
  OP(add_positions, AddPositionsArgs)               \
  OP(norm, NormArgs)                                \
  OP(add_norm, AddNormArgs)                         \
  OP(head_squares, HeadSquaresArgs)                 \
  OP(rope_write, RopeWriteArgs)                     \
  OP(head_product, HeadProductArgs)                 \
  OP(latent_write, LatentWriteArgs)                 \
  OP(attention, AttentionArgs)                      \
  OP(copy_block, BlockCopyArgs)                     \
  OP(fill_blocks, BlockFillArgs)                    \
  OP(exchange_sum, ExchangeSumArgs)                 \
  OP(exchange_norm, ExchangeNormArgs)               \
  OP(fold_parts, FoldPartsArgs)                     \
  OP(store_product, ProductArgs, StoreArgs)         \
  OP(qkv_product, ProductArgs, QkvArgs)             \
  OP(swiglu_product, ProductArgs, SwigluArgs)       \
  OP(route_rows, RouteArgs)                         \
  OP(expert_gate_up, ProductArgs, ExpertGateUpArgs) \
  OP(expert_down, ProductArgs, ExpertDownArgs)      \
  OP(sum_experts, SumExpertsArgs)                   \
  OP(activate, ActivateArgs)                        \
  OP(per_layer_inputs, PerLayerInputsArgs)          \
  OP(bend_logits, BendLogitsArgs)                   \
  OP(fill_random, RandomArgs)                       \
  OP(scan_rows, RowTasks)                           \
  OP(take_tokens, TakeTokensArgs)

template <typename... Args>
using Op = void(Stream&, const Args&...);

struct OpTable {
#define OUTRIDER_FIELD(name, ...) Op<__VA_ARGS__>* name;
  OUTRIDER_GPU_OPS(OUTRIDER_FIELD)
#undef OUTRIDER_FIELD
};

}  // namespace outrider::gpu
