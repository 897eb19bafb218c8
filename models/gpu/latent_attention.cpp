// Latent attention (MLA) on a GPU, in the absorbed form: what models/forward/latent_attention.h is
// for the CPU. See transformer.h.
#include "models/forward/latent_attention.h"

#include "models/gpu/buffers.h"
#include "models/gpu/transformer.h"

namespace outrider {

// Queries over the latent, behind what turns of them, [rows, heads, head_dim]; the key to the
// pages.
void GpuTransformer::project_latent(const Pass& pass,
                                    const GpuLayerWeights& w,
                                    const gpu::QkvArgs& to) {
  const GpuBuffers& b = *buffers_;
  const int32_t query_dim = config_.latent.query_dim();
  const int32_t rows = pass.sizes.rows;
  const bool is_low = config_.latent.q_rank > 0;
  const gpu::ProductArgs q = product(pass, is_low ? b.low : b.normed, w.q, nullptr);
  if (is_low) {
    ops_.store_product(*stream_, product(pass, b.normed, w.q_a, w.q_a_bias), {b.q_a});
    ops_.norm(*stream_,
              {.out = q.in,
               .x = b.q_a,
               .weight = w.q_norm,
               .eps = kLatentNormEps,
               .max_rows = rows,
               .step = pass.step});
  }
  ops_.store_product(*stream_, q, {b.q});
  ops_.store_product(*stream_, product(pass, b.normed, w.qkv, w.qkv_bias), {b.qkv});
  ops_.head_product(*stream_,
                    {.in = b.q,
                     .row_stride = w.n_heads * query_dim,
                     .head_stride = query_dim,
                     .weights = w.kv_b_keys,
                     .n_heads = w.n_heads,
                     .queries = to.queries,
                     .query_type = to.kv.type,
                     .query_dim = to.kv.head_dim,
                     .max_rows = rows,
                     .step = pass.step});
  ops_.latent_write(*stream_,
                    {.queries = b.q,
                     .query_dim = query_dim,
                     .keys = b.qkv,
                     .k_norm = w.k_norm,
                     .eps = kLatentNormEps,
                     .interleaved = config_.rope.interleaved,
                     .to = to,
                     .max_rows = rows,
                     .step = pass.step});
}

// attended [rows, heads * value_dim], of the sums of latents.
void GpuTransformer::make_values(const Pass& pass, const GpuLayerWeights& w) {
  const GpuBuffers& b = *buffers_;
  ops_.head_product(*stream_,
                    {.in = b.sums + config_.latent.rope_dim,
                     .row_stride = w.n_heads * config_.head_dim,
                     .head_stride = config_.head_dim,
                     .weights = w.kv_b_values,
                     .n_heads = w.n_heads,
                     .out = product(pass, b.attended, w.o, nullptr).in,
                     .max_rows = pass.sizes.rows,
                     .step = pass.step});
}

}  // namespace outrider
