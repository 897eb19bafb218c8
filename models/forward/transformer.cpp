// The forward pass: one page of ops, the same for prefill, draft steps and verification. Runs on
// the rank's compute thread; every member of the group calls forward() with the same batch. See
// transformer.h.
#include "models/forward/transformer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "models/forward/rope_frequencies.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"

namespace outrider {

// Everything a step writes, allocated once. rows = max_rows; heads, kv, ffn, vocab are this shard's
// counts.
struct Transformer::Buffers {
  ops::AlignedBytes memory;
  float* x = nullptr;         // [rows, hidden] residual stream
  float* normed = nullptr;    // [max(rows, logit rows), hidden]
  float* qkv = nullptr;       // [rows, qkv_width]
  float* attended = nullptr;  // [rows, heads * head_dim]
  float* part = nullptr;      // [rows, hidden] this rank's share of a row-parallel product
  float* gate_up = nullptr;   // [rows, 2 ffn]
  float* gated = nullptr;     // [rows, ffn]
  float* logits = nullptr;    // [logit rows, vocab]
  float* angles = nullptr;    // [rows, rotary_dim]
  std::vector<ops::AlignedBytes> kv_memory;  // per layer
  std::vector<ops::KvPages> kv;              // per layer
  std::vector<float> inv_freq;               // [rotary_dim / 2]
  std::vector<int64_t> o_slice_ends;         // of o's inner dimension; empty: not sliced
  std::vector<int64_t> down_slice_ends;
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

int64_t floats_per_block(const ModelConfig& config, const ModelShard& shard, int64_t block_size) {
  return shard.kv_heads.size() * block_size * config.head_dim;
}

// Products of sizes that came from files and options; overflow would turn into a small allocation.
size_t checked_bytes(std::initializer_list<int64_t> factors) {
  size_t bytes = sizeof(float);
  for (const int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(factor), &bytes)) {
      throw Error("the model's buffers would be larger than any memory");
    }
  }
  return bytes;
}

// Null where the model has no such bias.
const float* bias_of(const std::vector<float>& bias) {
  return bias.empty() ? nullptr : bias.data();
}

// Where a shard's slices end in a matrix whose inner dimension holds `size` columns for each unit.
std::vector<int64_t> slice_ends(const std::vector<Range>& slices, int64_t size) {
  std::vector<int64_t> ends;
  for (const Range& slice : slices) ends.push_back((slice.end - slices.front().begin) * size);
  return ends;
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
  const int64_t attended_width = shard_.heads.size() * config_.head_dim;
  const int64_t qkv_width = (shard_.heads.size() + 2 * shard_.kv_heads.size()) * config_.head_dim;
  const std::pair<float**, size_t> parts[] = {
      {&buffers_->x, checked_bytes({rows, hidden})},
      {&buffers_->normed, checked_bytes({std::max(rows, logit_rows), hidden})},
      {&buffers_->qkv, checked_bytes({rows, qkv_width})},
      {&buffers_->attended, checked_bytes({rows, attended_width})},
      {&buffers_->part, checked_bytes({rows, hidden})},
      {&buffers_->gate_up, checked_bytes({std::min(rows, kMlpRows), 2, shard_.ffn.size()})},
      {&buffers_->gated, checked_bytes({std::min(rows, kMlpRows), shard_.ffn.size()})},
      {&buffers_->logits, checked_bytes({logit_rows, shard_.vocab.size()})},
      {&buffers_->angles, checked_bytes({rows, config_.rope.rotary_dim})}};
  const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  size_t total = 0;
  for (const auto& [pointer, bytes] : parts) total += aligned(bytes);
  buffers_->memory = ops::allocate_bytes(total, ctx_.plan().nodes);
  memory_.buffers = total;
  memory_.weights = weights_->num_bytes();
  std::byte* next = buffers_->memory.get();
  for (const auto& [pointer, bytes] : parts) {
    *pointer = reinterpret_cast<float*>(next);
    next += aligned(bytes);
  }
  allocate_kv();
  buffers_->o_slice_ends = slice_ends(shard_.head_slices, config_.head_dim);
  buffers_->down_slice_ends = slice_ends(shard_.ffn_slices, 1);
  buffers_->inv_freq = rope_frequencies(config_.rope);
}

Transformer::~Transformer() = default;

size_t Transformer::matrix_bytes() const { return weights_->matrix_bytes(); }

void Transformer::allocate_kv() {
  const int64_t block = floats_per_block(config_, shard_, options_.block_size);
  const size_t half_bytes = checked_bytes({options_.num_blocks, block});
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    buffers_->kv_memory.push_back(ops::allocate_bytes(2 * half_bytes, ctx_.plan().nodes));
    memory_.kv += 2 * half_bytes;
    std::byte* memory = buffers_->kv_memory.back().get();
    buffers_->kv.push_back({.keys = reinterpret_cast<float*>(memory),
                            .values = reinterpret_cast<float*>(memory + half_bytes),
                            .num_blocks = options_.num_blocks,
                            .n_kv_heads = shard_.kv_heads.size(),
                            .block_size = options_.block_size,
                            .head_dim = config_.head_dim});
  }
}

size_t Transformer::kv_bytes_per_block(const ModelConfig& config,
                                       const ModelShard& shard,
                                       int32_t block_size) {
  return checked_bytes({2, config.n_layers, floats_per_block(config, shard, block_size)});
}

std::span<const ops::KvPages> Transformer::kv_pages() const { return buffers_->kv; }

const ops::KvPages& Transformer::kv_pages(int32_t layer) const {
  return buffers_->kv.at(static_cast<size_t>(layer));
}

void Transformer::clear_blocks(std::span<const int32_t> blocks) {
  const int64_t size = floats_per_block(config_, shard_, options_.block_size);
  for (const int32_t block : blocks) {
    OUTRIDER_CHECK(block >= 0 && block < options_.num_blocks);
    for (const ops::KvPages& pages : buffers_->kv) {
      std::fill_n(pages.keys + block * size, size, 0.0f);
      std::fill_n(pages.values + block * size, size, 0.0f);
    }
  }
}

void Transformer::copy_block(int32_t from, int32_t to) {
  OUTRIDER_CHECK(from >= 0 && from < options_.num_blocks && to >= 0 && to < options_.num_blocks);
  const int64_t size = floats_per_block(config_, shard_, options_.block_size);
  for (const ops::KvPages& pages : buffers_->kv) {
    std::copy_n(pages.keys + from * size, size, pages.keys + to * size);
    std::copy_n(pages.values + from * size, size, pages.values + to * size);
  }
}

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

std::span<const float> Transformer::compute(const Batch& batch) {
  auto rows = static_cast<int64_t>(batch.tokens.size());
  const auto logit_rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t hidden = config_.hidden_dim;
  const int64_t head_dim = config_.head_dim;
  const int64_t heads = shard_.heads.size();
  const int64_t kv_heads = shard_.kv_heads.size();
  const int64_t ffn = shard_.ffn.size();
  const int64_t qkv_width = (heads + 2 * kv_heads) * head_dim;
  const float eps = config_.norm_eps;
  Buffers& b = *buffers_;
  float* const q = b.qkv;                    // [rows, heads * head_dim] at stride qkv_width
  float* const k = q + heads * head_dim;     // [rows, kv_heads * head_dim] at stride qkv_width
  float* const v = k + kv_heads * head_dim;  // [rows, kv_heads * head_dim] at stride qkv_width
  const ops::EmbeddingTable table = {.data = weights_->embedding.get(),
                                     .dtype = weights_->embedding_dtype,
                                     .n_rows = shard_.vocab.size(),
                                     .n = hidden,
                                     .first_id = static_cast<int32_t>(shard_.vocab.begin),
                                     .packed = &weights_->head};
  const ops::Rope rotation = {b.inv_freq, static_cast<float>(config_.rope.attention_factor)};
  const ops::RowAngles angles = {b.angles, config_.rope.rotary_dim};
  ops::AttentionRows where = {batch.positions, batch.sequence_of_row, batch.block_tables};
  if (rows == 0) return {};

  ops::rope_angles(ctx_, b.angles, batch.positions, rotation);
  ops::embed(ctx_, b.x, batch.tokens, table);  // x [rows, hidden]
  sum_over_ranks(b.x, rows * hidden);

  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
    const ops::KvPages& pages = b.kv[static_cast<size_t>(layer)];
    const ops::Queries queries = {.data = q,
                                  .stride = qkv_width,
                                  .n_heads = heads,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                  .window = window_of(layer)};

    if (layer == 0) {
      ops::rms_norm(ctx_, b.normed, b.x, w.attn_norm.data(), rows, hidden, eps);
    } else {  // x += part
      ops::add_rms_norm(ctx_, b.normed, b.x, b.part, w.attn_norm.data(), rows, hidden, eps);
    }
    ops::linear(
        ctx_, b.qkv, b.normed, rows, w.qkv, {bias_of(w.qkv_bias)});  // qkv [rows, qkv_width]
    if (config_.qk_norm) {
      ops::rms_norm_heads(ctx_, q, rows, qkv_width, heads, head_dim, w.q_norm.data(), eps);
      ops::rms_norm_heads(ctx_, k, rows, qkv_width, kv_heads, head_dim, w.k_norm.data(), eps);
    }
    ops::rope(ctx_, q, rows, qkv_width, heads + kv_heads, head_dim, angles);  // q and k
    ops::kv_write(ctx_, pages, k, v, qkv_width, where);
    if (layer + 1 == config_.n_layers && logit_rows < rows) {
      // Keys and values are stored: from here on only rows whose logits are wanted matter.
      if (logit_rows == 0) return {};
      ops::gather_rows(ctx_, b.x, b.x, batch.logit_rows, hidden);
      ops::gather_rows(ctx_, b.qkv, b.qkv, batch.logit_rows, qkv_width);
      where = buffers_->choose_rows(batch);
      rows = logit_rows;
    }
    ops::attention(ctx_, b.attended, queries, pages, where);  // attended [rows, heads * head_dim]
    const ops::LinearSum o_sum = {bias_of(w.o_bias), b.o_slice_ends};
    ops::linear(ctx_, b.part, b.attended, rows, w.o, o_sum);  // part [rows, hidden]
    sum_over_ranks(b.part, rows * hidden);

    // x += part
    ops::add_rms_norm(ctx_, b.normed, b.x, b.part, w.mlp_norm.data(), rows, hidden, eps);
    for (int64_t first = 0; first < rows; first += kMlpRows) {
      const int64_t count = std::min(kMlpRows, rows - first);
      const float* in = b.normed + first * hidden;
      ops::linear(ctx_, b.gate_up, in, count, w.gate_up, {bias_of(w.gate_up_bias)});
      ops::silu_mul(ctx_, b.gated, b.gate_up, count, ffn);  // [count, 2 ffn] to [count, ffn]
      const ops::LinearSum sum = {bias_of(w.down_bias), b.down_slice_ends};
      ops::linear(ctx_, b.part + first * hidden, b.gated, count, w.down, sum);  // [count, hidden]
    }
    sum_over_ranks(b.part, rows * hidden);
  }

  const float* final_norm = weights_->final_norm.data();
  ops::add_rms_norm(ctx_, b.normed, b.x, b.part, final_norm, rows, hidden, eps);
  ops::linear(ctx_, b.logits, b.normed, rows, weights_->head);  // logits [logit rows, vocab]
  return {b.logits, static_cast<size_t>(logit_rows * shard_.vocab.size())};
}

}  // namespace outrider
