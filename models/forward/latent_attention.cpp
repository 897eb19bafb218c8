// See latent_attention.h. Heads are to their products what experts are to theirs: matrices of one
// shape, each with rows of its own.
#include "models/forward/latent_attention.h"

#include <algorithm>

namespace outrider {
namespace {

// What lies between the products stays in the caches.
constexpr int64_t kMostRows = 128;

}  // namespace

LatentAttention::LatentAttention(const ModelConfig& config,
                                 const ModelShard& shard,
                                 int64_t max_rows)
    : config_(config),
      shard_(shard),
      max_rows_(max_rows),
      most_rows_(std::min(max_rows, kMostRows)) {}

std::vector<StepBuffer> LatentAttention::buffers() {
  const LatentConfig& latent = config_.latent;
  const int64_t heads = shard_.heads.size();
  const int64_t all_queries = heads * latent.query_dim();
  const bool is_low = latent.q_rank > 0;
  return {{&projected_, {most_rows_, (is_low ? latent.q_rank : all_queries) + config_.head_dim}},
          {&low_, {most_rows_, latent.q_rank}},
          {&queries_, {is_low ? most_rows_ : 0, all_queries}},
          {&in_heads_, {heads, most_rows_, std::max(latent.nope_dim, latent.kv_rank)}},
          {&out_heads_, {heads, most_rows_, std::max(latent.kv_rank, latent.value_dim)}},
          {&values_, {max_rows_, heads, latent.value_dim}}};
}

// Of what lies in projected_.
ops::PlacedHeads<const float> LatentAttention::project_queries(ops::Context& ctx,
                                                               const LayerWeights& w,
                                                               int64_t rows) {
  const int64_t rank = config_.latent.q_rank;
  const int64_t query_dim = config_.latent.query_dim();
  if (rank == 0) return {projected_, w.qkv.n_out(), query_dim};
  ops::copy_heads(ctx, {low_, rank}, {projected_, w.qkv.n_out()}, {rows, 1, rank});
  ops::rms_norm(ctx, low_, low_, w.q_norm.data(), rows, rank, kLatentNormEps);
  ops::linear(ctx, queries_, low_, rows, w.q_b);
  return {queries_, w.q_b.n_out(), query_dim};
}

// out_heads [heads, rows, n_out] of in_heads [heads, rows, n_in].
void LatentAttention::multiply_heads(ops::Context& ctx,
                                     const ops::ExpertMatrix& matrix,
                                     int64_t rows) {
  groups_.clear();
  for (int64_t h = 0; h < shard_.heads.size(); ++h)
    groups_.push_back({h, h * rows, (h + 1) * rows});
  ops::expert_linear(ctx, out_heads_, in_heads_, matrix, groups_);
}

void LatentAttention::project(ops::Context& ctx,
                              const LayerWeights& w,
                              const float* in,
                              const ops::HeadRows& queries) {
  const LatentConfig& latent = config_.latent;
  const int64_t rope = latent.rope_dim;
  const int64_t nope = latent.nope_dim;
  const int64_t rank = latent.kv_rank;
  const int64_t heads = queries.n_heads;
  const int64_t width = w.qkv.n_out();
  const float* bias = data_or_null(w.qkv_bias);
  for (int64_t first = 0; first < queries.rows; first += most_rows_) {
    const int64_t rows = std::min(most_rows_, queries.rows - first);
    ops::linear(ctx, projected_, in + first * config_.hidden_dim, rows, w.qkv, {bias});
    float* const own = queries.data + first * queries.stride;
    const ops::PlacedHeads<float> turning = {own, queries.stride, queries.head_dim};
    const ops::PlacedHeads<float> absorbed = {own + rope, queries.stride, queries.head_dim};
    ops::PlacedHeads<const float> from = project_queries(ctx, w, rows);
    ops::copy_heads(ctx, {in_heads_, nope, rows * nope}, from, {rows, heads, nope});
    multiply_heads(ctx, {&w.kv_b_keys, rank}, rows);
    ops::copy_heads(ctx, absorbed, {out_heads_, rank, rows * rank}, {rows, heads, rank});
    from.data += nope;
    ops::copy_heads(ctx, turning, from, {rows, heads, rope});

    float* const key = own + heads * queries.head_dim;
    const float* const kv_a = projected_ + width - config_.head_dim;
    ops::copy_heads(ctx, {key + rope, queries.stride}, {kv_a, width}, {rows, 1, rank});
    ops::copy_heads(ctx, {key, queries.stride}, {kv_a + rank, width}, {rows, 1, rope});
    const ops::HeadRows latents = {key + rope, rows, queries.stride, 1, rank};
    ops::rms_norm_heads(ctx, latents, w.k_norm.data(), kLatentNormEps);
  }
}

const float* LatentAttention::values(ops::Context& ctx,
                                     const LayerWeights& w,
                                     const float* attended,
                                     int64_t rows) {
  const LatentConfig& latent = config_.latent;
  const int64_t rank = latent.kv_rank;
  const int64_t dim = latent.value_dim;
  const int64_t heads = shard_.heads.size();
  const int64_t stride = heads * config_.head_dim;
  for (int64_t first = 0; first < rows; first += most_rows_) {
    const int64_t count = std::min(most_rows_, rows - first);
    const float* const sums = attended + first * stride + latent.rope_dim;
    ops::copy_heads(ctx,
                    {in_heads_, rank, count * rank},
                    {sums, stride, config_.head_dim},
                    {count, heads, rank});
    multiply_heads(ctx, {&w.kv_b_values, dim}, count);
    float* const own = values_ + first * heads * dim;
    ops::copy_heads(
        ctx, {own, heads * dim, dim}, {out_heads_, dim, count * dim}, {count, heads, dim});
  }
  return values_;
}

}  // namespace outrider
