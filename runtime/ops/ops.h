// The vocabulary of the forward pass: free functions over plain float arrays, row-major. Every op
// is row-invariant: a row's result has the same bits whatever other rows share the call, and does
// not depend on the number of threads (docs/architecture.md, Numerics). Sums along the inner
// dimension run in one fixed order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/ops/kv_pages.h"
#include "runtime/ops/tensor.h"
#include "runtime/ops/thread_plan.h"

namespace outrider::ops {

class ThreadPool;

enum class Isa { kScalar, kAvx2, kAvx512 };
Isa best_isa();                              // what this CPU has
Isa isa_from_name(const std::string& name);  // "auto", "scalar", "avx2", "avx512"; throws Error
const char* isa_name(Isa isa);

// What a product with bf16 weights makes of its activations. kBF16 rounds them to bf16 (nearest
// even; denormals to zero): twice the speed on a CPU with AVX512-BF16, and the same bits on every
// other. Products with f16 and f32 weights are not touched.
enum class Activations { kF32, kBF16 };
bool has_bf16_dot();  // whether this CPU has AVX512-BF16

// One rank's way to compute: its threads and its kernels. Not thread-safe: one call at a time.
class Context {
 public:
  explicit Context(const ThreadPlan& plan, Isa isa = best_isa());
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  int num_threads() const;
  Isa isa() const { return isa_; }
  ThreadPool& threads() { return *threads_; }
  const ThreadPlan& plan() const;
  // Cuts 0 .. count into a range for each thread, which all call body(begin, end) of theirs at once
  // and must not throw.
  void for_range(int64_t count, const std::function<void(int64_t begin, int64_t end)>& body);
  uint32_t num_hand_overs() const;  // jobs given to all threads so far, modulo 2^32
  // Memory for one call's temporary values, 64-byte aligned; the next call's may lie in the same.
  // Grows when more is asked for than ever before, else allocates nothing.
  std::byte* scratch(size_t num_bytes);

  Activations activations() const { return activations_; }
  void set_activations(Activations activations) { activations_ = activations; }
  // Off: bf16 products as on a CPU with this isa but without AVX512-BF16, for tests and
  // comparisons.
  void allow_bf16_dot(bool allowed) { bf16_dot_allowed_ = allowed; }
  bool uses_bf16_dot() const;

 private:
  Isa isa_;
  Activations activations_ = Activations::kF32;
  bool bf16_dot_allowed_ = true;
  AlignedBytes scratch_;
  size_t scratch_bytes_ = 0;
  std::unique_ptr<ThreadPool> threads_;
};

// out[r, :] = table[ids[r] - first_id, :] when the id is in [first_id, first_id + table rows), else
// zeros (the rows of other ranks' shards). A zero comes out without sign: so the sum over the ranks
// has the same bits for any number of them. table: [n_rows, n] row-major of dtype; or, with data
// null, the rows of a packed matrix (a head that is tied to the embedding).
struct EmbeddingTable {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t n_rows = 0;
  int64_t n = 0;
  int32_t first_id = 0;
  const PackedMatrix* packed = nullptr;
};
void embed(Context& ctx, float* out, std::span<const int32_t> ids, const EmbeddingTable& table);

// How a product's sums are made. slice_ends cuts the inner dimension: slice s reaches from the end
// of the one before (0 for the first) to slice_ends[s]; ends ascend, are even but for the last, and
// the last is w.n_in(); slices may be empty; at most kMaxSlices. Each slice is summed by itself,
// bias goes to the first, and the slices are folded in the tree of
// runtime/base/numbers/fold_tree.h. So the products of two matrices that hold the halves of a
// sliced one, each with its own slices, add up to the same bits.
inline constexpr int64_t kMaxSlices = 8;
struct LinearSum {
  const float* bias = nullptr;               // [w.n_out()] or null
  std::span<const int64_t> slice_ends = {};  // empty: one slice
  int64_t out_stride = 0;                    // of out's rows; 0: w.n_out()
};

// A quantised w: slices end at multiples of kQuantBlock (else Error; check_quant_cuts). Activations
// are rounded to 8 bits, with one scale per row and stretch: inputs [begin, end) up to a group's
// end, a multiple of 128 of the whole matrix or a slice's end. Integer sums are exact. A stretch
// that holds NaN or inf makes all outputs of its row NaN.
//
// out[r, o] = sum_i in[r, i] * w[o, i] (+ bias[o] when given). out: [rows, w.n_out()], in: [rows,
// w.n_in()]. Weights are read once for all rows of a call of up to 32 rows; larger calls are tiled.
// With ctx.activations() kBF16 and bf16 weights in[r, i] is rounded to bf16 first.
void linear(Context& ctx,
            float* out,
            const float* in,
            int64_t rows,
            const PackedMatrix& w,
            const LinearSum& sum = {});

// Rows [begin, end) of a product that belong to one expert.
struct ExpertRows {
  int64_t expert = 0;
  int64_t begin = 0;
  int64_t end = 0;
};
// Matrices of one shape in one: the outputs of expert e begin with panel e * panels_of(n_out).
struct ExpertMatrix {
  const PackedMatrix* w = nullptr;
  int64_t n_out = 0;            // of one expert
  const float* bias = nullptr;  // [experts, n_out] or null
};
inline int64_t panels_of(int64_t n_out) { return (n_out + kRowsPerPanel - 1) / kRowsPerPanel; }
// linear() of each group's rows with its expert's matrix: out [rows, n_out], in [rows, w.n_in()].
// Groups ascend, by expert and by rows, from row 0 on. An expert's weights are read once for up to
// 32 rows of its own.
void expert_linear(Context& ctx,
                   float* out,
                   const float* in,
                   const ExpertMatrix& matrix,
                   std::span<const ExpertRows> groups);

// The same added up: row r of the product times factors[r] joins row_ids[r] of sums, which holds
// [rows, slices, n_out], slice s that of slice_ends[s] (LinearSum; empty: one). A row's sum is one
// chain over its experts, ascending, of products by themselves.
struct ExpertSums {
  float* sums = nullptr;
  const int32_t* row_ids = nullptr;
  const float* factors = nullptr;
  std::span<const int64_t> slice_ends = {};
};
void add_expert_linear(Context& ctx,
                       const ExpertSums& to,
                       const float* in,
                       const ExpertMatrix& matrix,
                       std::span<const ExpertRows> groups);

// out[r, :] = the slices of row r folded in the tree of runtime/base/numbers/fold_tree.h. slices:
// [rows, num_slices, n], overwritten.
void fold_slices(
    Context& ctx, float* out, float* slices, int64_t rows, int64_t num_slices, int64_t n);

// How a row's experts are chosen. Scores: softmax over all of them, or the sigmoid of each. Of the
// groups (equal, neighbours) with the largest sums of two best scores the per_row best experts are
// taken; ties go to the lower id. `correction` [count] is added to scores for the choice alone. The
// weights are the scores; normalised: divided by their sum; times scale.
inline constexpr int32_t kMaxExperts = 1024;
struct ExpertChoice {
  int32_t count = 0;  // at most kMaxExperts
  int32_t per_row = 0;
  bool sigmoid = false;
  const float* correction = nullptr;
  int32_t groups = 1;
  int32_t chosen_groups = 1;
  bool normalised = false;
  float scale = 1.0f;
};
// logits: [rows, stride], the experts' first, overwritten. ids and weights: [rows, per_row], ids of
// a row ascend. Logits that are not finite make weights that are not, never a wrong id.
struct ExpertLogits {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;
};
void choose_experts(Context& ctx,
                    int32_t* ids,
                    float* weights,
                    const ExpertLogits& logits,
                    const ExpertChoice& choice);

// x = 1 / (1 + exp(-x)), of count numbers.
void sigmoid(Context& ctx, float* x, int64_t count);

// out = x / sqrt(mean(x^2) + eps) * weight, per row of n. out may be x.
void rms_norm(Context& ctx,
              float* out,
              const float* x,
              const float* weight,
              int64_t rows,
              int64_t n,
              float eps);

// Heads of rows: [rows, stride], heads of head_dim side by side from the start of a row.
struct HeadRows {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t n_heads = 0;
  int64_t head_dim = 0;
};
// rms_norm of each head, in place.
void rms_norm_heads(Context& ctx, const HeadRows& x, const float* weight, float eps);

// The norm of x + y, which is left in x: out = norm(x + y), x += y. For a residual stream.
void add_rms_norm(Context& ctx,
                  float* out,
                  float* x,
                  const float* y,
                  const float* weight,
                  int64_t rows,
                  int64_t n,
                  float eps);

// Layer norm (Ba et al. 2016): out = (x - mean) / sqrt(variance + eps) * weight (+ bias when
// given), per row of n. out may be x.
struct LayerNorm {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 1e-5f;
};
void layer_norm(
    Context& ctx, float* out, const float* x, const LayerNorm& norm, int64_t rows, int64_t n);

// Layer norm of each head with weights of its own, [n_heads, head_dim]. In place.
void layer_norm_heads(Context& ctx, const HeadRows& x, const float* weight, float eps);

// An rms norm over all heads of a model, of which ranks hold parts, in two steps. First each head's
// sum of squares: sums[r * sums_stride + h].
void head_squares(Context& ctx, float* sums, int64_t sums_stride, const HeadRows& x);
// Then x *= weight / sqrt(sum over num_sums of row r's sums / (num_sums * head_dim) + eps), summed
// in ascending order. weight: [n_heads, head_dim].
struct SquaresOfAllHeads {
  const float* sums = nullptr;
  int64_t stride = 0;
  int64_t num_sums = 0;
};
void rms_norm_all_heads(Context& ctx,
                        const HeadRows& x,
                        const SquaresOfAllHeads& squares,
                        const float* weight,
                        float eps);

// Each head of row r times factors[r].
void scale_heads(Context& ctx, const HeadRows& x, const float* factors);

// Moves heads: to.data[r * to.row_stride + h * to.head_stride + i] = the same of `from`, for every
// row, head and i < head_dim. The two must not overlap.
template <typename Float>
struct PlacedHeads {
  Float* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};
struct HeadCounts {
  int64_t rows = 0;
  int64_t n_heads = 0;
  int64_t head_dim = 0;
};
void copy_heads(Context& ctx,
                const PlacedHeads<float>& to,
                const PlacedHeads<const float>& from,
                const HeadCounts& counts);

// x += factor * y, and x *= factor, of count numbers.
void add_scaled(Context& ctx, float* x, const float* y, float factor, int64_t count);
void scale(Context& ctx, float* x, float factor, int64_t count);
// x = cap * tanh(x / cap).
void softcap(Context& ctx, float* x, float cap, int64_t count);
// x[r, :] += table[ids[r], :], rows of n.
void add_rows(Context& ctx, float* x, const float* table, std::span<const int32_t> ids, int64_t n);

// How fast the pairs of a head turn with the position; cos and sin are scaled by attention_factor.
struct Rope {
  std::span<const float> inv_freq;  // [rotary_dim / 2]
  float attention_factor = 1.0f;
};
// angles: [rows, rotary_dim], of each row the cosines of positions[r] * inv_freq, then the sines.
// Made once a step, for all heads of all layers.
void rope_angles(Context& ctx, float* angles, std::span<const int32_t> positions, const Rope& rope);

// Rotary position embedding in place, half-split form (Su et al. 2021; Hugging Face layout): for i
// < rotary_dim/2 rotates (x[i], x[i + rotary_dim/2]) of every head by the row's angle i.
struct RowAngles {
  const float* data = nullptr;  // from rope_angles
  int64_t rotary_dim = 0;
  bool interleaved = false;  // pairs are (x[2 i], x[2 i + 1])
};
void rope(Context& ctx, const HeadRows& x, const RowAngles& angles);

// The ragged batch an attention sees. Row r belongs to sequence sequence_of_row[r] and stands at
// positions[r]; position t of a sequence s lives in block block_tables[s][t / block_size], slot t %
// block_size.
struct AttentionRows {
  std::span<const int32_t> positions;                      // [rows]
  std::span<const int32_t> sequence_of_row;                // [rows]
  std::span<const std::span<const int32_t>> block_tables;  // [sequences]
};

// Stores each row's key and value heads, n_kv_heads of head_dim each, into its slot, in the pages'
// type.
void kv_write(Context& ctx,
              const KvPages& pages,
              const PlacedHeads<const float>& keys,
              const PlacedHeads<const float>& values,
              const AttentionRows& rows);

// Causal attention with grouped KV heads: out[r, h, :] = softmax(q . k / sqrt(head_dim)) v over
// positions max(0, positions[r] - window + 1) .. positions[r] (window 0 = all). Query head h reads
// KV head h / (n_heads / n_kv_heads). q: [rows, q_stride], out: [rows, n_heads * head_dim]. The sum
// over positions is cut at absolute positions, so the bits do not depend on how the rows were
// grouped.
struct Queries {
  const float* data = nullptr;
  int64_t stride = 0;
  int64_t n_heads = 0;
  float scale = 1.0f;  // usually 1 / sqrt(head_dim)
  int64_t window = 0;
  float softcap = 0.0f;  // scores become softcap * tanh(score / softcap); 0: they stay
  // [n_heads] or null, added to scores times the key's position: ALiBi (Press et al. 2021).
  const float* slopes = nullptr;
  // [n_heads] or null: a score of each head that joins the softmax and has no value (attention
  // sinks).
  const float* sinks = nullptr;
};
void attention(Context& ctx,
               float* out,
               const Queries& queries,
               const KvPages& pages,
               const AttentionRows& rows);

// out[r, i] = activation(gate_up[r, i]) * gate_up[r, n + i]; gate_up: [rows, 2n]. And x[i] =
// activation(x[i]).
void activate_mul(
    Context& ctx, float* out, const float* gate_up, int64_t rows, int64_t n, ActivationKind kind);
void activate(Context& ctx, float* x, int64_t count, ActivationKind kind);

// out[i] = (up + 1) * gate * sigmoid(alpha * gate) of gate = min(pairs[2 i], limit) and up =
// pairs[2 i + 1] within -limit .. limit. pairs: [2 count].
void clamped_swiglu(
    Context& ctx, float* out, const float* pairs, int64_t count, const ClampedSwiglu& of);

// x[r, i] *= y[r, i] for each row of one head of y. x: [rows, head_dim].
void multiply_rows(Context& ctx, float* x, const HeadRows& y);

// out[j, :] = x[row_ids[j], :], rows of n. out may be x when row_ids ascend.
void gather_rows(
    Context& ctx, float* out, const float* x, std::span<const int32_t> row_ids, int64_t n);

}  // namespace outrider::ops
