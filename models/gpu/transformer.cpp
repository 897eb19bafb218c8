// The forward pass on a GPU: run() says what a step is, as Transformer::compute() does for the CPU.
// See transformer.h.
#include "models/gpu/transformer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/gpu/buffers.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

size_t bytes_of(const gpu::Matrix& matrix) {
  return static_cast<size_t>(matrix.n_out) * static_cast<size_t>(matrix.n_in) *
         gpu::type_bytes(matrix.type);
}

}  // namespace

GpuTransformer::GpuTransformer(ModelConfig config,
                               std::shared_ptr<const GpuWeights> weights,
                               const ModelShard& shard,
                               const ModelOptions& options,
                               const GpuOptions& gpu_options,
                               gpu::Device& device,
                               const gpu::OpTable& ops)
    : Model(std::move(config), shard, options),
      weights_(std::move(weights)),
      gpu_options_(gpu_options),
      device_(device),
      ops_(ops),
      stream_(device.make_stream(gpu_options.priority)),
      step_(device, config_, shard_, options_, gpu_options.max_positions) {
  OUTRIDER_CHECK(weights_ != nullptr);
  OUTRIDER_CHECK(weights_->layers.size() >= static_cast<size_t>(config_.n_layers));
  memory_.weights = weights_->num_bytes;
  buffers_ = std::make_unique<GpuBuffers>(
      device, *stream_, config_, shard_, *weights_, options_, gpu_options_);
  memory_.kv = buffers_->kv_bytes;
  memory_.buffers = buffers_->num_bytes + step_.num_bytes();
}

GpuTransformer::~GpuTransformer() = default;

void GpuTransformer::join(DeviceGroup& group) {
  OUTRIDER_CHECK(group.rank() == shard_.rank && group.size() == shard_.num_ranks);
  OUTRIDER_CHECK(group_ == nullptr);
  group_ = &group;
  memory_.buffers += group.num_bytes();
}

void GpuTransformer::run(const gpu::StepView& step, const LaunchSizes& sizes) {
  const GpuBuffers& b = *buffers_;
  const int32_t rows = sizes.rows;
  const int32_t hidden = config_.hidden_dim;
  const auto heads = static_cast<int32_t>(shard_.heads.size());
  const Fold fold = shard_.numerics == Numerics::kStrict ? Fold::kTree : Fold::kRankOrder;
  // What a product of n inputs with weights of this type reads, in the memory at `data`.
  const auto input = [](void* data, const gpu::Matrix& weights) {
    return gpu::Activations{data, activation_type(weights.type), weights.n_in};
  };
  const auto product = [&](void* in, const gpu::Matrix& weights, const float* bias) {
    return gpu::ProductArgs{
        .in = input(in, weights), .weights = weights, .bias = bias, .max_rows = rows, .step = step};
  };
  const auto norm_of = [&](const gpu::Matrix& next, const float* weight) {
    return gpu::NormArgs{.out = input(b.normed, next),
                         .x = b.x,
                         .weight = weight,
                         .eps = config_.norm_eps,
                         .max_rows = rows,
                         .step = step};
  };
  // x += the sum of the ranks' parts, then the norm in front of the product with `next`.
  const auto sum_and_norm = [&](gpu::NormArgs norm, const gpu::Matrix& next) {
    group_->sum_and_norm(*stream_,
                         {.norm = norm,
                          .part = b.part,
                          .fold = fold,
                          .next = next.data,
                          .next_bytes = bytes_of(next)});
  };

  ops_.embed(*stream_,  // x [rows, hidden]
             {.out = b.x,
              .table = weights_->embedding,
              .type = weights_->embedding_type,
              .is_packed = weights_->embedding_is_packed,
              .n_rows = static_cast<int32_t>(shard_.vocab.size()),
              .n = hidden,
              .first_id = static_cast<int32_t>(shard_.vocab.begin),
              .max_rows = rows,
              .step = step});
  group_->all_reduce_sum(
      *stream_, b.x, static_cast<size_t>(rows) * static_cast<size_t>(hidden), fold);

  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    const GpuLayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
    const gpu::KvView& kv = b.kv[static_cast<size_t>(layer)];
    const gpu::QkvArgs to = {.queries = b.queries, .n_heads = heads, .kv = kv, .rotary = b.rotary};

    if (layer == 0) {
      ops_.norm(*stream_, norm_of(w.qkv, w.attn_norm));
    } else {
      sum_and_norm(norm_of(w.qkv, w.attn_norm), w.qkv);
    }
    if (weights_->qkv_is_fused) {  // queries [rows, heads, head_dim]; keys, values to the pages
      ops_.qkv_product(*stream_, product(b.normed, w.qkv, w.qkv_bias), to);
    } else {
      ops_.store_product(*stream_, product(b.normed, w.qkv, w.qkv_bias), {b.qkv});
      ops_.rope_write(*stream_,
                      {.qkv = b.qkv,
                       .q_norm = w.q_norm,
                       .k_norm = w.k_norm,
                       .eps = config_.norm_eps,
                       .to = to,
                       .max_rows = rows,
                       .step = step});
    }
    // Keys and values are stored: without logits that was all.
    if (layer + 1 == config_.n_layers && sizes.logit_rows == 0) return;
    ops_.attention(*stream_,
                   {.out = input(b.attended, w.o),
                    .queries = b.queries,
                    .n_heads = heads,
                    .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                    .window = static_cast<int32_t>(config_.window_of(layer)),
                    .kv = kv,
                    .scratch = b.attention_scratch,
                    .max_rows = rows,
                    .max_items = sizes.items,
                    .max_splits = sizes.splits,
                    .step = step});
    ops_.store_product(*stream_, product(b.attended, w.o, w.o_bias), {b.part});

    sum_and_norm(norm_of(w.gate_up, w.mlp_norm), w.gate_up);
    ops_.swiglu_product(*stream_,  // gated [rows, ffn]
                        product(b.normed, w.gate_up, w.gate_up_bias),
                        {input(b.gated, w.down)});
    ops_.store_product(*stream_, product(b.gated, w.down, w.down_bias), {b.part});
  }

  // Of the rows whose logits are wanted alone: logits [logit rows, vocab].
  gpu::NormArgs last_norm = norm_of(weights_->head, weights_->final_norm);
  last_norm.selected = true;
  sum_and_norm(last_norm, weights_->head);
  gpu::ProductArgs last_product = product(b.normed, weights_->head, nullptr);
  last_product.selected = true;
  last_product.max_rows = sizes.logit_rows;
  ops_.store_product(*stream_, last_product, {b.logits});
}

void GpuTransformer::launch(const LaunchSizes& sizes) {
  const bool may_record =
      !gpu_options_.enforce_eager && group_->is_capturable() && sizes.rows <= kMostRecordedRows;
  const auto found = graphs_.find(sizes);
  if (found != graphs_.end()) {
    stream_->replay(*found->second);
  } else {
    run(step_.view(), sizes);  // the first time as it is, which also loads the kernels
    if (may_record) record(sizes);
  }
}

void GpuTransformer::record(const LaunchSizes& sizes) {
  stream_->begin_recording();
  run(step_.view(), sizes);
  graphs_[sizes] = stream_->end_recording();
}

void GpuTransformer::warm_up() {
  if (gpu_options_.enforce_eager || !group_->is_capturable()) return;
  for (const LaunchSizes& sizes : step_.recorded_sizes()) {
    if (!graphs_.contains(sizes)) record(sizes);
  }
}

void GpuTransformer::begin(const Batch& batch) {
  OUTRIDER_CHECK(group_ != nullptr);
  check_batch(batch);
  num_logits_ = batch.logit_rows.size() * static_cast<size_t>(shard_.vocab.size());
  if (batch.tokens.empty()) return;
  wait_.finish(*stream_, *group_);  // what the last step reads may be written again
  const LaunchSizes sizes = step_.fill(batch);
  wait_.begin(sizes);
  step_.upload(*stream_);
  launch(sizes);
  count_sums(sizes);
  buffers_->num_blocks_named = 0;
  if (num_logits_ == 0 || keeps_logits_) return;
  read_logits_on_host();
  stream_->download(host_logits_.as<float>(), buffers_->logits, num_logits_ * sizeof(float));
}

std::span<const float> GpuTransformer::finish() {
  if (num_logits_ == 0) return {};
  if (keeps_logits_) return {buffers_->logits, num_logits_};
  wait();
  return {host_logits_.as<float>(), num_logits_};
}

void GpuTransformer::read_logits_on_host() {
  keeps_logits_ = false;
  if (host_logits_.num_bytes() == 0)
    host_logits_ = gpu::PinnedBuffer(device_, buffers_->logits_bytes);
}

void GpuTransformer::queue_chain(const std::vector<LaunchSizes>& sizes) {
  const auto num_steps = static_cast<int32_t>(sizes.size());
  for (int32_t i = 0; i < num_steps; ++i) {
    run(chain_->step(i), sizes[static_cast<size_t>(i)]);
    ops_.scan_rows(*stream_, chain_->choices(i));
    if (i + 1 < num_steps) ops_.take_tokens(*stream_, chain_->next_tokens(i));
  }
}

std::vector<ChosenToken> GpuTransformer::run_chain(const ChainedSteps& chain) {
  constexpr size_t kMostGraphs = 64;  // a thousand launches each
  OUTRIDER_CHECK(group_ != nullptr && chain.num_steps <= most_chained_steps());
  check_batch(*chain.first);
  wait_.finish(*stream_, *group_);
  if (!chain_) {
    chain_ =
        std::make_unique<GpuChain>(device_, config_, shard_, options_, gpu_options_.max_positions);
  }
  const std::vector<LaunchSizes> sizes =
      chain_->fill(chain, buffers_->logits, static_cast<int64_t>(shard_.vocab.size()));
  chain_->upload(*stream_);
  const std::tuple kind(chain.choices.size(), chain.num_tokens, chain_->wants_likeliest(), sizes);
  const auto found = chain_graphs_.find(kind);
  if (found != chain_graphs_.end()) {
    stream_->replay(*found->second);
  } else {
    queue_chain(sizes);  // the first time as it is
    if (!gpu_options_.enforce_eager && group_->is_capturable()) {
      if (chain_graphs_.size() == kMostGraphs) chain_graphs_.clear();
      stream_->begin_recording();
      queue_chain(sizes);
      chain_graphs_[kind] = stream_->end_recording();
    }
  }
  chain_->download(*stream_);
  wait();
  buffers_->num_blocks_named = 0;
  return chain_->chosen();
}

// Their time is the device's own and is not seen here.
void GpuTransformer::count_sums(const LaunchSizes& sizes) {
  if (group_->size() == 1) return;
  const int32_t skipped = sizes.logit_rows == 0 ? 2 : 0;
  const auto num_sums = static_cast<uint64_t>(2 * config_.n_layers + 1 - skipped);
  sum_traffic_.num_sums += num_sums;
  sum_traffic_.num_bytes += num_sums * static_cast<uint64_t>(sizes.rows) *
                            static_cast<uint64_t>(config_.hidden_dim) * sizeof(float);
}

void GpuTransformer::clear_blocks(std::span<const int32_t> blocks) { fill_blocks(blocks, false); }
void GpuTransformer::poison_blocks(std::span<const int32_t> blocks) { fill_blocks(blocks, true); }

void GpuTransformer::fill_blocks(std::span<const int32_t> blocks, bool poison) {
  for (const int32_t block : blocks) OUTRIDER_CHECK(block >= 0 && block < options_.num_blocks);
  GpuBuffers& b = *buffers_;
  while (!blocks.empty()) {
    if (b.num_blocks_named == b.most_blocks_named) {
      group_->wait(*stream_);
      b.num_blocks_named = 0;
    }
    const size_t count = std::min(blocks.size(), b.most_blocks_named - b.num_blocks_named);
    int32_t* const names = b.block_names.as<int32_t>() + b.num_blocks_named;
    std::copy_n(blocks.begin(), count, names);
    b.num_blocks_named += count;
    for (const gpu::KvView& kv : b.kv) {
      ops_.fill_blocks(
          *stream_,
          {.kv = kv, .blocks = names, .num_blocks = static_cast<int32_t>(count), .poison = poison});
    }
    blocks = blocks.subspan(count);
  }
}

void GpuTransformer::copy_block(int32_t from, int32_t to) {
  OUTRIDER_CHECK(from >= 0 && from < options_.num_blocks && to >= 0 && to < options_.num_blocks);
  for (const gpu::KvView& kv : buffers_->kv) {
    ops_.copy_block(*stream_, {.kv = kv, .from = from, .to = to});
  }
}

// Bytes of ones are NaN in every type.
void GpuTransformer::poison_position(int32_t block, int32_t slot) {
  for (const gpu::KvView& kv : buffers_->kv) {
    const size_t slot_bytes = static_cast<size_t>(kv.head_dim) * gpu::type_bytes(kv.type);
    for (int32_t head = 0; head < kv.n_kv_heads; ++head) {
      const auto at = static_cast<size_t>((block * kv.n_kv_heads + head) * kv.block_size + slot);
      for (void* pages : {kv.keys, kv.values}) {
        stream_->fill(static_cast<std::byte*>(pages) + at * slot_bytes, 0xff, slot_bytes);
      }
    }
  }
}

}  // namespace outrider
