// The inner kernels: raw pointers in, raw pointers out, one table per instruction set. The wrappers
// in this folder own shapes and threads and call these; the ISA-specific files that implement them
// include nothing of the standard library but integer types, so that no template compiled for AVX
// can be linked into code that runs without it. Invariant: all tables give the same bits; every sum
// has one order, fixed by absolute indices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::ops::cpu {

// Kernels are written over vectors of this many floats, whatever the registers hold.
inline constexpr int kLanes = 16;
// Weights are packed in panels of kPanel outputs. An output's sum over the inner dimension is cut
// every kInnerChunk elements: within a chunk one chain of fma, the chunks added in order.
inline constexpr int64_t kPanel = 64;
inline constexpr int64_t kInnerChunk = 256;
// Most rows of one linear_* call; the weights of the panel are read from memory once for all of
// them.
inline constexpr int64_t kMaxLinearRows = 128;
// Attention cuts the positions of a sequence at multiples of this.
inline constexpr int64_t kPositionChunk = 128;

// totals[r * kPanel + o] = sum_i activation(r, i) * weight[o][i] for the kPanel outputs of one
// panel. bf16 panels hold pairs: dword (i / 2) * kPanel + o is element i in its low and i + 1 in
// its high half. f32 and f16 panels hold element i of output o at i * kPanel + o. Element i of row
// r stands at in + r * in_stride + (i / kInnerChunk) * chunk_stride + i % kInnerChunk, counted in
// elements.
struct LinearPanel {
  const void* weights = nullptr;
  int64_t n_in = 0;
  const void* in = nullptr;  // float; or what the round_row of the same RoundedProducts writes
  int64_t in_stride = 0;     // of rounded rows: kInnerChunk
  int64_t chunk_stride = kInnerChunk;
  int64_t rows = 0;  // 1 .. kMaxLinearRows
  float* totals = nullptr;
  // When set, row r's finished sums go to out + r * out_stride instead, and totals is scratch.
  float* out = nullptr;
  int64_t out_stride = 0;
};

// Products of bf16 weights with activations rounded to bf16: what one vdpbf16ps does per pair of
// elements, which is fma of the odd element and then fma of the even one, each rounded to nearest
// even, denormals (inputs and results) taken as zero. The rest of the sum as elsewhere: a chain per
// chunk from zero, the chunks added in order, denormal sums flushed too.
struct RoundedProducts {
  int64_t element_bytes;  // of a rounded row
  // Rounds count (1 .. kInnerChunk) elements, and adds a zero when the count is odd.
  void (*round_row)(void* out, const float* in, int64_t count);
  void (*panel)(const LinearPanel&);  // of even n_in
  // Multiplies in registers, as many at once as pay; returns the multiplications and additions
  // made.
  int64_t (*peak)(int64_t rounds, float* sink);
};

// Queries (a query head of a row each) that share one KV head's keys and values, over one chunk of
// positions. Slots count from the chunk's first position; query i sees those from begins[i] to
// below ends[i], which may lie outside the chunk. A running state is [max, sum, value sums of
// head_dim].
struct AttentionTile {
  const void* queries =
      nullptr;  // [num_queries, head_dim] floats, or as rounded_attention.h has them
  int64_t num_queries = 0;
  int64_t head_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;           // 0: none
  const float* slopes = nullptr;  // [num_queries] or null: added times the key's position
  int64_t first_position = 0;     // of slot 0
  const void* keys = nullptr;     // of the type that the kernel is for
  const void* values = nullptr;
  const int64_t* offsets = nullptr;   // of each slot's vector from keys and from values
  const float* key_scales = nullptr;  // [slots], for integers only
  const float* value_scales = nullptr;
  int64_t first = 0;            // slots that some query sees: first .. last - 1; offsets holds
  int64_t last = 0;             // those, and each query sees at least one of them
  bool keys_asked_for = false;  // the call before named them as its next
  const int64_t* next_offsets = nullptr;  // [num_next] keys that the next call will read, if known
  int64_t num_next = 0;
  const int32_t* begins = nullptr;  // at least 0 where the query starts in this chunk
  const int32_t* ends = nullptr;
  float* scratch = nullptr;  // [attention_scratch(head_dim, num_queries)], 64-byte aligned
  float* running = nullptr;  // [num_queries, head_dim + 2], written where a query starts here
};

// Queries whose sums are made side by side, at most.
inline constexpr int64_t kMaxScoreQueries = 6;
// Floats for a chunk's keys turned over, its values when they are no floats, scores, maximum and
// sum of each query, and partial states of those side by side.
inline constexpr int64_t attention_scratch(int64_t head_dim, int64_t num_queries) {
  return 2 * kPositionChunk * head_dim + num_queries * (kPositionChunk + 2) +
         kMaxScoreQueries * (head_dim + 2);
}

// Kernels that pack weights work on this many rows of a matrix at once.
inline constexpr int kPackRows = 16;

struct KernelTable {
  void (*linear_f32)(const LinearPanel&);
  void (*linear_bf16)(const LinearPanel&);
  void (*linear_f16)(const LinearPanel&);
  RoundedProducts rounded;                // by fma
  const RoundedProducts* rounded_by_dot;  // the same bits from a CPU with AVX512-BF16, or null
  float (*sum_of_squares)(const float* x, int64_t n);
  void (*scale_by_weight)(float* out, const float* x, float scale, const float* weight, int64_t n);
  // x += y; the sum of squares of the new x.
  float (*add_sum_of_squares)(float* x, const float* y, int64_t n);
  // Rotates the pairs (x[i], x[half + i]) by angles given as half cosines and half sines.
  void (*rotate)(float* x, const float* angles, int64_t half);
  void (*silu_mul)(float* out, const float* gate, const float* up, int64_t n);
  void (*exponential)(float* out, const float* x, int64_t n);
  void (*attention_tile[3])(const AttentionTile&);  // by KvType
  // Turns a query's products with the keys, [kPositionChunk], into softmax's weights before they
  // are divided by their sum, and writes the largest score and that sum to partial. With scales the
  // weights are those of the values as they are kept.
  void (*attention_softmax)(const AttentionTile&, int64_t query, float* scores, float* partial);
  void (*bf16_of_int8)(uint16_t* out, const int8_t* in, int64_t count);  // a multiple of kLanes
  // Folds a later chunk's partial of one head into the running one.
  void (*attention_merge)(float* running, const float* partial, int64_t head_dim);
  void (*attention_finish)(float* out, const float* running, int64_t head_dim);
  // Transposes kPackRows rows into one panel, 4 or 2 bytes an element: out[i * kPanel + lane] =
  // rows[lane][i] for i < count, a multiple of 16. out is aligned to 16 elements; the rows need not
  // be aligned.
  void (*pack_dwords)(uint32_t* out, const char* const* rows, int64_t count);
  void (*pack_words)(uint16_t* out, const char* const* rows, int64_t count);
  // Reads num_bytes (a multiple of 1024) once, for bandwidth measurements; returns a mix of what it
  // read.
  uint32_t (*read_stream)(const void* data, int64_t num_bytes);
};

// Defined in kernels_<isa>.cpp.
extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const RoundedProducts kAvx512Bf16Products;

}  // namespace outrider::ops::cpu
