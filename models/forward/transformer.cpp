// The forward pass: one page of ops, the same for prefill, draft steps and verification. Runs on
// the rank's compute thread; every member of the group calls forward() with the same batch. See
// transformer.h.
#include "models/forward/transformer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "models/forward/experts.h"
#include "models/forward/kv_memory.h"
#include "models/forward/latent_attention.h"
#include "models/forward/per_layer_inputs.h"
#include "models/forward/rope_frequencies.h"
#include "models/forward/step_buffer.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"

namespace outrider {

// Everything a step writes, allocated once. rows = max_rows; heads, kv, ffn, vocab are this shard's
// counts.
struct Transformer::Buffers {
  ops::AlignedBytes memory;
  float* x = nullptr;             // [rows, hidden] residual stream
  float* normed = nullptr;        // [max(rows, logit rows), hidden]
  float* qkv = nullptr;           // [rows, qkv_width]
  float* values = nullptr;        // [rows, kv * head_dim] of layers whose values are keys
  float* attended = nullptr;      // [rows, heads * head_dim]
  float* part = nullptr;          // [rows, hidden] this rank's share of a row-parallel product
  float* gate_up = nullptr;       // [rows, 2 ffn]
  float* gated = nullptr;         // [rows, ffn]
  float* logits = nullptr;        // [logit rows, vocab]
  float* angles = nullptr;        // [rows, rotary_dim]
  float* local_angles = nullptr;  // the same of windowed layers with a rope of their own
  float* squares = nullptr;       // [rows, heads + kv heads of the whole model], for their norms
  struct Layer {                  // what may differ between layers
    ModelShard shard;
    int64_t head_dim = 0;
    int64_t n_kv_heads = 0;             // of its own
    bool has_values = true;             // else they are the keys
    std::vector<int64_t> o_slice_ends;  // of o's inner dimension; empty: not sliced
    std::vector<int64_t> down_slice_ends;
  };
  std::vector<Layer> layers;
  std::vector<float> inv_freq;  // [rotary_dim / 2]
  std::vector<float> local_inv_freq;
  std::vector<float> slopes;             // ALiBi's, of this shard's heads
  std::vector<float> query_factors;      // [rows]
  std::vector<int32_t> logit_positions;  // of the last step's logit rows
  std::vector<int32_t> logit_sequences;

  ops::AttentionRows choose_rows(const Batch& batch) {
    logit_positions.clear();
    logit_sequences.clear();
    for (const int32_t row : batch.logit_rows) {
      logit_positions.push_back(batch.positions[static_cast<size_t>(row)]);
      logit_sequences.push_back(batch.sequence_of_row[static_cast<size_t>(row)]);
    }
    return {logit_positions, logit_sequences, batch.block_tables};
  }
};

namespace {

// Rows that go through gate, up and down together: what lies between stays in the caches. Products
// of more rows read the weights once for every so many rows anyway (ops.h).
constexpr int64_t kMlpRows = 128;

static_assert(kStrictSlices <= ops::kMaxSlices);

bool all_heads_normed(const ModelConfig& config) {
  return config.qk_norm && config.qk_norm_span == QkNormSpan::kAllHeads;
}

void check_options(const TransformerOptions& options) {
  const bool sane = options.block_size > 0 && options.num_blocks > 0 && options.max_rows > 0 &&
                    options.max_logit_rows > 0;
  if (!sane) throw Error("block size, blocks, rows and logit rows of a model must be positive");
}

}  // namespace

Transformer::Transformer(ModelConfig config,
                         std::shared_ptr<const Weights> weights,
                         const ModelShard& shard,
                         const TransformerOptions& options,
                         TargetGroup& group,
                         ops::Context& ctx)
    : Model(std::move(config), shard, options),
      weights_(std::move(weights)),
      group_(group),
      ctx_(ctx),
      buffers_(std::make_unique<Buffers>()) {
  check_options(options_);
  OUTRIDER_CHECK(weights_ != nullptr);
  OUTRIDER_CHECK(weights_->layers.size() >= static_cast<size_t>(config_.n_layers));
  OUTRIDER_CHECK(group_.rank() == shard_.rank && group_.size() == shard_.num_ranks);

  const int64_t rows = options_.max_rows;
  const int64_t logit_rows = options_.max_logit_rows;
  const int64_t hidden = config_.hidden_dim;
  shape_layers();
  const auto widest = [this](const auto& width_of) {
    int64_t most = 0;
    for (int32_t l = 0; l < config_.n_layers; ++l) most = std::max(most, width_of(l));
    return most;
  };
  const int64_t qkv_width = widest([this](int32_t l) { return queries(l, 0).stride; });
  const int64_t values_width = widest([this](int32_t l) -> int64_t {
    const Buffers::Layer& own = buffers_->layers[static_cast<size_t>(l)];
    return config_.k_is_v(l) ? own.n_kv_heads * own.head_dim : 0;
  });
  const int64_t attended_width =
      widest([this](int32_t l) { return queries(l, 0).n_heads * queries(l, 0).head_dim; });
  const int64_t ffn = widest(
      [this](int32_t l) { return buffers_->layers[static_cast<size_t>(l)].shard.ffn.size(); });
  const int64_t mlp_rows = std::min(rows, kMlpRows);
  std::vector<StepBuffer> parts = {
      {&buffers_->x, {rows, hidden}},
      {&buffers_->normed, {std::max(rows, logit_rows), hidden}},
      {&buffers_->qkv, {rows, qkv_width}},
      {&buffers_->values, {rows, values_width}},
      {&buffers_->attended, {rows, attended_width}},
      {&buffers_->part, {rows, hidden}},
      {&buffers_->gate_up, {mlp_rows, config_.gated_mlp ? 2 : 1, ffn}},
      {&buffers_->gated, {mlp_rows, ffn}},
      {&buffers_->logits, {logit_rows, shard_.vocab.size()}},
      {&buffers_->angles, {rows, config_.rope.rotary_dim}},
      {&buffers_->local_angles, {rows, config_.local_rope ? config_.local_rope->rotary_dim : 0}},
      {&buffers_->squares,
       {rows, all_heads_normed(config_) ? config_.n_heads + config_.n_kv_heads : 0}}};
  const auto add = [&parts](const std::vector<StepBuffer>& buffers) {
    parts.insert(parts.end(), buffers.begin(), buffers.end());
  };
  if (config_.experts.count > 0) {
    experts_ = std::make_unique<ExpertMlp>(config_, shard_, rows);
    add(experts_->buffers());
  }
  if (config_.is_latent()) {
    latent_ = std::make_unique<LatentAttention>(config_, shard_, rows);
    add(latent_->buffers());
  }
  if (config_.per_layer_dim > 0) {
    per_layer_ = std::make_unique<PerLayerInputs>(config_, shard_, rows);
    add(per_layer_->buffers());
  }
  const auto aligned_bytes = [](const StepBuffer& part) {
    return (checked_bytes(part.factors) + 63) / 64 * 64;
  };
  size_t total = 0;
  for (const StepBuffer& part : parts) total += aligned_bytes(part);
  buffers_->memory = ops::allocate_bytes(total, ctx_.plan().nodes);
  memory_.buffers = total;
  memory_.weights = weights_->num_bytes();
  std::byte* next = buffers_->memory.get();
  for (const StepBuffer& part : parts) {
    *part.at = reinterpret_cast<float*>(next);
    next += aligned_bytes(part);
  }
  kv_ = std::make_unique<KvMemory>(config_, shard_, options_, ctx_);
  memory_.kv = kv_->num_bytes();
  const int32_t served = config_.longest_served();
  if (config_.rope.rotary_dim > 0) {
    buffers_->inv_freq = rope_frequencies(config_.rope, served);
  }
  if (config_.local_rope) {
    buffers_->local_inv_freq = rope_frequencies(*config_.local_rope, served);
  }
  if (config_.alibi) buffers_->slopes = alibi_slopes(config_, shard_.heads);
}

Transformer::~Transformer() = default;

void Transformer::shape_layers() {
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    const ModelConfig own = config_.of_layer(layer);
    const ModelShard shard = shard_of_layer(config_, shard_, layer);
    buffers_->layers.push_back({.shard = shard,
                                .head_dim = own.head_dim,
                                .n_kv_heads = own.names.k.empty() ? 0 : shard.kv_heads.size(),
                                .has_values = !config_.is_latent() && !own.names.v.empty(),
                                .o_slice_ends = slice_ends(shard.head_slices, own.value_dim()),
                                .down_slice_ends = slice_ends(shard.ffn_slices, 1)});
  }
}

// All matrices but the experts', and so many experts.
size_t Transformer::bytes_with(int64_t num_experts) const {
  size_t total = weights_->matrix_bytes();
  size_t one = 0;
  for (const LayerWeights& layer : weights_->layers) {
    if (!layer.has_experts()) continue;
    const size_t experts = layer.gate_up.num_bytes() + layer.down.num_bytes();
    total -= experts;
    one = experts / static_cast<size_t>(config_.experts.count);
  }
  return total + one * static_cast<size_t>(num_experts);
}

size_t Transformer::matrix_bytes() const {
  int64_t num_experts = 0;
  for (const LayerWeights& layer : weights_->layers) {
    num_experts += layer.has_experts() ? config_.experts.per_row : 0;
  }
  return bytes_with(num_experts);
}

size_t Transformer::step_bytes() const {
  return bytes_with(experts_ == nullptr ? 0 : experts_->num_read() - num_experts_before_);
}

size_t Transformer::kv_bytes_per_block(const ModelConfig& config,
                                       const ModelShard& shard,
                                       int32_t block_size,
                                       ops::KvType type) {
  return KvMemory::bytes_per_block(config, shard, block_size, type);
}

std::span<const ops::KvPages> Transformer::kv_pages() const { return kv_->pages(); }

const ops::KvPages& Transformer::kv_pages(int32_t layer) const {
  return kv_->pages()[static_cast<size_t>(config_.kv_layer_of(layer))];
}

void Transformer::clear_blocks(std::span<const int32_t> blocks) { kv_->clear_blocks(blocks); }

void Transformer::copy_block(int32_t from, int32_t to) { kv_->copy_block(from, to); }

void Transformer::sum_over_ranks(float* values, int64_t count) {
  if (group_.size() == 1) return;
  const auto begin = std::chrono::steady_clock::now();
  const std::span<float> all = {values, static_cast<size_t>(count)};
  group_.all_reduce_sum(all, shard_.numerics == Numerics::kStrict ? Fold::kTree : Fold::kRankOrder);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  ++sum_traffic_.num_sums;
  sum_traffic_.num_bytes += all.size_bytes();
  sum_traffic_.seconds += taken.count();
}

void Transformer::begin(const Batch& batch) {
  check_batch(batch);
  batch_ = &batch;
}

std::optional<JobClock::time_point> Transformer::advance() {
  if (batch_ != nullptr) logits_ = compute(*std::exchange(batch_, nullptr));
  return std::nullopt;
}

std::span<const float> Transformer::finish() {
  advance();
  return logits_;
}

ops::HeadRows Transformer::queries(int32_t layer, int64_t rows) const {
  const Buffers::Layer& own = buffers_->layers[static_cast<size_t>(layer)];
  const int64_t heads = own.shard.heads.size();
  const int64_t all = heads + (own.has_values ? 2 : 1) * own.n_kv_heads;
  return {buffers_->qkv, rows, all * own.head_dim, heads, own.head_dim};
}

ops::HeadRows Transformer::keys(int32_t layer, int64_t rows) const {
  ops::HeadRows all = queries(layer, rows);
  all.data += all.n_heads * all.head_dim;
  all.n_heads = buffers_->layers[static_cast<size_t>(layer)].n_kv_heads;
  return all;
}

ops::HeadRows Transformer::values(int32_t layer, int64_t rows) const {
  ops::HeadRows all = keys(layer, rows);
  if (latent_ != nullptr) return all;  // they lie in the keys
  const int64_t width = all.n_heads * all.head_dim;
  if (config_.k_is_v(layer)) return {buffers_->values, rows, width, all.n_heads, all.head_dim};
  all.data += width;
  return all;
}

// Of the rows' positions, for all heads of all layers.
void Transformer::make_angles(std::span<const int32_t> positions) {
  Buffers& b = *buffers_;
  const auto angles_of = [&](float* to, const std::vector<float>& freq, const RopeConfig& rope) {
    const ops::Rope rotation = {freq, static_cast<float>(rope.attention_factor)};
    if (!freq.empty()) ops::rope_angles(ctx_, to, positions, rotation);
  };
  angles_of(b.angles, b.inv_freq, config_.rope);
  angles_of(b.local_angles, b.local_inv_freq, config_.local_rope.value_or(RopeConfig{}));
}

// x [rows, hidden], and the angles of their positions.
void Transformer::embed(const Batch& batch, int64_t rows) {
  Buffers& b = *buffers_;
  const int64_t hidden = config_.hidden_dim;
  make_angles(batch.positions);
  ops::embed(ctx_,
             b.x,
             batch.tokens,
             {.data = weights_->embedding.get(),
              .dtype = weights_->embedding_dtype,
              .n_rows = shard_.vocab.size(),
              .n = hidden,
              .first_id = static_cast<int32_t>(shard_.vocab.begin),
              .packed = &weights_->packed_embedding()});
  sum_over_ranks(b.x, rows * hidden);
  if (config_.embedding_scale != 1.0f) {
    ops::scale(ctx_, b.x, config_.embedding_scale, rows * hidden);
  }
  if (!weights_->positions.empty()) {
    const float* first = weights_->positions.data() + config_.position_offset * hidden;
    ops::add_rows(ctx_, b.x, first, batch.positions, hidden);
  }
  if (per_layer_ == nullptr) return;
  const std::span<float> vectors = per_layer_->embed(ctx_, *weights_, batch.tokens);
  sum_over_ranks(vectors.data(), std::ssize(vectors));
  per_layer_->add_embeddings(ctx_, *weights_, b.x, rows);
}

// All keys and values are stored: from here on only rows whose logits are wanted matter.
ops::AttentionRows Transformer::keep_logit_rows(const Batch& batch, int32_t layer) {
  Buffers& b = *buffers_;
  const int64_t hidden = config_.hidden_dim;
  const auto keep = [&](float* x, int64_t n) { ops::gather_rows(ctx_, x, x, batch.logit_rows, n); };
  keep(b.x, hidden);
  keep(b.qkv, queries(layer, 0).stride);
  if (config_.parallel_mlp) keep(b.normed, hidden);
  if (per_layer_ != nullptr) per_layer_->keep(ctx_, batch.logit_rows);
  const ops::AttentionRows where = b.choose_rows(batch);
  if (layer + 1 < config_.n_layers) make_angles(where.positions);
  return where;
}

// The norm of x; x itself where there is none.
const float* Transformer::norm(const NormWeights& weights, int64_t rows) {
  Buffers& b = *buffers_;
  const float* weight = weights.weight.data();
  if (weights.weight.empty()) return b.x;
  if (config_.norm == NormKind::kRms) {
    ops::rms_norm(ctx_, b.normed, b.x, weight, rows, config_.hidden_dim, config_.norm_eps);
  } else {
    const ops::LayerNorm layer_norm = {weight, data_or_null(weights.bias), config_.norm_eps};
    ops::layer_norm(ctx_, b.normed, b.x, layer_norm, rows, config_.hidden_dim);
  }
  return b.normed;
}

// x += part, where that has a norm its norm, then the next norm of x.
const float* Transformer::add_and_norm(const NormWeights& of_part,
                                       const NormWeights& next,
                                       int64_t rows) {
  Buffers& b = *buffers_;
  const int64_t hidden = config_.hidden_dim;
  const bool is_plain = of_part.weight.empty() && config_.residual_scale == 1.0f;
  if (is_plain && config_.norm == NormKind::kRms && !next.weight.empty()) {
    ops::add_rms_norm(
        ctx_, b.normed, b.x, b.part, next.weight.data(), rows, hidden, config_.norm_eps);
    return b.normed;
  }
  if (!of_part.weight.empty()) {
    ops::rms_norm(ctx_, b.part, b.part, of_part.weight.data(), rows, hidden, config_.norm_eps);
  }
  ops::add_scaled(ctx_, b.x, b.part, config_.residual_scale, rows * hidden);
  return norm(next, rows);
}

// Queries, keys and values, without their positions.
void Transformer::project(int32_t layer, const float* in, int64_t rows) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  if (latent_ != nullptr) return latent_->project(ctx_, w, in, queries(layer, rows));
  const int64_t stride = queries(layer, rows).stride;
  const float* const bias = data_or_null(w.qkv_bias);
  ops::linear(ctx_, buffers_->qkv, in, rows, w.qkv, {bias, {}, stride});
  if (w.v.n_out() > 0) {
    const int64_t first = w.qkv.n_out();
    const float* const of_v = bias == nullptr ? nullptr : bias + first;
    ops::linear(ctx_, buffers_->qkv + first, in, rows, w.v, {of_v, {}, stride});
  }
  if (!config_.k_is_v(layer)) return;
  const ops::HeadRows k = keys(layer, rows);
  const ops::HeadRows v = values(layer, rows);
  ops::copy_heads(ctx_,
                  {v.data, v.stride, v.head_dim},
                  {k.data, k.stride, k.head_dim},
                  {rows, k.n_heads, k.head_dim});
}

void Transformer::norm_queries_and_keys(int32_t layer, int64_t rows) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const ops::HeadRows q = queries(layer, rows);
  const ops::HeadRows k = keys(layer, rows);
  const ops::HeadRows v = values(layer, rows);
  const float eps = config_.norm_eps;
  if (config_.v_norm) ops::rms_norm_heads(ctx_, v, w.v_norm.data(), eps);
  switch (config_.qk_norm_span) {
    case QkNormSpan::kHead:
      ops::rms_norm_heads(ctx_, q, w.q_norm.data(), eps);
      ops::rms_norm_heads(ctx_, k, w.k_norm.data(), eps);
      break;
    case QkNormSpan::kOwnHead:
      ops::layer_norm_heads(ctx_, q, w.q_norm.data(), eps);
      ops::layer_norm_heads(ctx_, k, w.k_norm.data(), eps);
      break;
    case QkNormSpan::kAllHeads: {
      // Of each head one rank knows the sum, the others add zeros: exact for any number of ranks.
      const int64_t all = config_.n_heads + config_.n_kv_heads;
      const int64_t group = config_.n_heads / config_.n_kv_heads;
      float* const sums = buffers_->squares;
      std::fill_n(sums, rows * all, 0.0f);
      ops::head_squares(ctx_, sums + shard_.heads.begin, all, q);
      // A KV head that several ranks hold is summed by the one with its first query head.
      ops::HeadRows own = k;
      int64_t first = shard_.kv_heads.begin;
      if (first * group < shard_.heads.begin) own.n_heads = 0;
      ops::head_squares(ctx_, sums + config_.n_heads + first, all, own);
      sum_over_ranks(sums, rows * all);
      ops::rms_norm_all_heads(ctx_, q, {sums, all, config_.n_heads}, w.q_norm.data(), eps);
      ops::rms_norm_all_heads(
          ctx_, k, {sums + config_.n_heads, all, config_.n_kv_heads}, w.k_norm.data(), eps);
    }
  }
}

// Positions into queries and keys.
void Transformer::rotate(int32_t layer, std::span<const int32_t> positions) {
  Buffers& b = *buffers_;
  const ops::HeadRows q = queries(layer, std::ssize(positions));
  if (config_.has_rope(layer)) {
    const bool is_local = config_.local_rope && config_.window_of(layer) > 0;
    const RopeConfig& rope = is_local ? *config_.local_rope : config_.rope;
    const ops::RowAngles angles = {
        is_local ? b.local_angles : b.angles, rope.rotary_dim, config_.rope.interleaved};
    ops::HeadRows all = q;
    all.n_heads += keys(layer, 0).n_heads;
    ops::rope(ctx_, all, angles);
  }
  if (config_.query_growth != 0.0f) {
    b.query_factors.clear();
    for (const int32_t position : positions) {
      b.query_factors.push_back(query_factor(config_, position));
    }
    ops::scale_heads(ctx_, q, b.query_factors.data());
  }
}

// [rows, heads * value_dim]
const float* Transformer::attend(int32_t layer, const ops::AttentionRows& where) {
  Buffers& b = *buffers_;
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const ops::HeadRows q = queries(layer, 0);
  const ops::Queries queries = {.data = q.data,
                                .stride = q.stride,
                                .n_heads = q.n_heads,
                                .scale = score_scale(config_, q.head_dim),
                                .window = config_.window_of(layer),
                                .softcap = config_.attention_softcap,
                                .slopes = data_or_null(b.slopes),
                                .sinks = data_or_null(w.sinks)};
  ops::attention(ctx_, b.attended, queries, kv_pages(layer), where);
  if (latent_ == nullptr) return b.attended;
  return latent_->values(ctx_, w, b.attended, std::ssize(where.positions));
}

// part [rows, hidden], of this rank.
void Transformer::mlp(int32_t layer, const float* in, int64_t rows) {
  Buffers& b = *buffers_;
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const Buffers::Layer& own = b.layers[static_cast<size_t>(layer)];
  const bool is_dense = !w.has_experts();
  if (!is_dense && !config_.experts.beside_mlp) {
    return experts_->compute(ctx_, w, in, rows, b.part);
  }
  const ops::PackedMatrix& gate_up = is_dense ? w.gate_up : w.shared_gate_up;
  const ops::PackedMatrix& down = is_dense ? w.down : w.shared_down;
  const int64_t hidden = config_.hidden_dim;
  const int64_t ffn = own.shard.ffn.size();
  for (int64_t first = 0; first < rows; first += kMlpRows) {
    const int64_t count = std::min(kMlpRows, rows - first);
    float* const up = config_.gated_mlp ? b.gate_up : b.gated;  // [count, 2 ffn] or [count, ffn]
    ops::linear(ctx_, up, in + first * hidden, count, gate_up, {data_or_null(w.gate_up_bias)});
    if (!config_.gated_mlp) {
      ops::activate(ctx_, b.gated, count * ffn, config_.activation);
    } else {
      ops::activate_mul(ctx_, b.gated, b.gate_up, count, ffn, config_.activation);
    }
    const ops::LinearSum sum = {data_or_null(w.down_bias), own.down_slice_ends};
    ops::linear(ctx_, b.part + first * hidden, b.gated, count, down, sum);  // [count, hidden]
  }
}

// part = norm(part) + norm(experts of x), where experts stand beside the MLP.
void Transformer::add_experts(const LayerWeights& w, int64_t rows) {
  Buffers& b = *buffers_;
  const int64_t hidden = config_.hidden_dim;
  float* const sums = b.normed;  // the MLP has read it
  experts_->compute(ctx_, w, b.x, rows, sums);
  sum_over_ranks(sums, rows * hidden);
  for (const auto& [part, norm] :
       {std::pair(sums, &w.experts_post_norm), std::pair(b.part, &w.dense_post_norm)}) {
    ops::rms_norm(ctx_, part, part, norm->weight.data(), rows, hidden, config_.norm_eps);
  }
  ops::add_scaled(ctx_, b.part, sums, 1.0f, rows * hidden);
}

// What follows the MLP: the layer's vector of each token, through a gate, and a factor on all of x.
// Returns the norm of what still waits in part; null when nothing does.
const NormWeights* Transformer::end_layer(const LayerWeights& w, int32_t layer, int64_t rows) {
  if (config_.per_layer_dim == 0 && !config_.layer_scalar) return &w.mlp_post_norm;
  Buffers& b = *buffers_;
  const NormWeights none;
  add_and_norm(w.mlp_post_norm, none, rows);
  if (per_layer_ != nullptr) {
    const auto count = static_cast<size_t>(rows * config_.hidden_dim);
    per_layer_->compute(ctx_, w, layer, {b.x, count}, b.part);
    add_and_norm(w.per_layer_norm, none, rows);
  }
  ops::scale(ctx_, b.x, w.scalar, rows * config_.hidden_dim);
  return nullptr;
}

std::span<const float> Transformer::compute(const Batch& batch) {
  auto rows = static_cast<int64_t>(batch.tokens.size());
  const auto logit_rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t hidden = config_.hidden_dim;
  Buffers& b = *buffers_;
  ops::AttentionRows where = {batch.positions, batch.sequence_of_row, batch.block_tables};
  const NormWeights* of_part = nullptr;  // the norm of what waits in part; null: nothing does
  const auto next_norm = [&](const NormWeights& next) {  // x += part
    return of_part == nullptr ? norm(next, rows) : add_and_norm(*of_part, next, rows);
  };
  if (rows == 0) return {};
  if (experts_ != nullptr) num_experts_before_ = experts_->num_read();

  embed(batch, rows);
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
    const float* in = next_norm(w.attn_norm);
    project(layer, in, rows);  // qkv [rows, qkv_width]
    if (config_.qk_norm) norm_queries_and_keys(layer, rows);
    rotate(layer, where.positions);
    if (layer < config_.n_kv_layers()) {
      const ops::HeadRows k = keys(layer, rows);
      const ops::HeadRows v = values(layer, rows);
      ops::kv_write(ctx_,
                    kv_pages(layer),
                    {k.data, k.stride, k.head_dim},
                    {v.data, v.stride, v.head_dim},
                    where);
    }
    if (layer + 1 == config_.n_kv_layers() && logit_rows < rows) {
      if (logit_rows == 0) return {};
      where = keep_logit_rows(batch, layer);
      rows = logit_rows;
    }
    const float* attended = attend(layer, where);
    const ops::LinearSum o_sum = {data_or_null(w.o_bias),
                                  b.layers[static_cast<size_t>(layer)].o_slice_ends};
    ops::linear(ctx_, b.part, attended, rows, w.o, o_sum);  // part [rows, hidden]
    sum_over_ranks(b.part, rows * hidden);

    if (!config_.parallel_mlp) {
      in = add_and_norm(w.attn_post_norm, w.mlp_norm, rows);  // x += part
    } else {                                                  // both from x as it was
      if (!w.mlp_norm.weight.empty()) in = norm(w.mlp_norm, rows);
      ops::add_scaled(ctx_, b.x, b.part, config_.residual_scale, rows * hidden);
    }
    mlp(layer, in, rows);
    sum_over_ranks(b.part, rows * hidden);
    if (w.has_experts() && config_.experts.beside_mlp) add_experts(w, rows);
    of_part = end_layer(w, layer, rows);
  }

  const float* last = next_norm(weights_->final_norm);
  ops::linear(ctx_, b.logits, last, rows, weights_->head);  // logits [logit rows, vocab]
  const int64_t count = logit_rows * shard_.vocab.size();
  if (config_.logit_scale != 1.0f) ops::scale(ctx_, b.logits, config_.logit_scale, count);
  if (config_.logit_softcap != 0.0f) ops::softcap(ctx_, b.logits, config_.logit_softcap, count);
  return {b.logits, static_cast<size_t>(count)};
}

}  // namespace outrider
