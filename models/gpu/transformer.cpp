// The forward pass on a GPU: run() says what a step is, as Transformer::compute() does for the CPU.
// See transformer.h.
#include "models/gpu/transformer.h"

#include <algorithm>
#include <utility>

#include "models/forward/rope_frequencies.h"
#include "models/gpu/buffers.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

size_t bytes_of(const gpu::Matrix& matrix) {
  return static_cast<size_t>(matrix.n_out) * static_cast<size_t>(matrix.n_in) *
         gpu::type_bytes(matrix.type);
}

// What a product with such weights reads, in the memory at `data`.
gpu::Activations input(void* data, const gpu::Matrix& weights) {
  return {data, activation_type(weights.type), weights.n_in};
}

// What reads the norm in front of an MLP. Of experts nobody knows which will be read, so none of
// it.
gpu::Matrix first_of_mlp(const GpuLayerWeights& w) {
  if (!w.has_experts() || w.gate_up.data != nullptr) return w.gate_up;
  gpu::Matrix matrix = w.experts.gate_up;
  matrix.n_out = 0;
  return matrix;
}

gpu::HeadNorm head_norm(QkNormSpan span) {
  if (span == QkNormSpan::kHead) return gpu::HeadNorm::kHead;
  return span == QkNormSpan::kOwnHead ? gpu::HeadNorm::kOwnHead : gpu::HeadNorm::kAllHeads;
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
  if (buffers_->experts != nullptr) {
    experts_ = std::make_unique<GpuExpertMlp>(
        config_, shard_, options_.max_rows, activation_type(buffers_->matrix_type));
    experts_->use_memory(buffers_->experts);
  }
  memory_.kv = buffers_->kv_bytes;
  memory_.buffers = buffers_->num_bytes + step_.num_bytes();
}

GpuTransformer::~GpuTransformer() = default;

// Of experts those that one row chooses.
size_t GpuTransformer::matrix_bytes() const {
  if (experts_ == nullptr) return weights_->matrix_bytes;
  const ExpertsConfig& experts = config_.experts;
  const size_t one = weights_->expert_bytes / static_cast<size_t>(experts.count);
  return weights_->matrix_bytes - weights_->expert_bytes +
         one * static_cast<size_t>(experts.per_row);
}

void GpuTransformer::join(DeviceGroup& group) {
  OUTRIDER_CHECK(group.rank() == shard_.rank && group.size() == shard_.num_ranks);
  OUTRIDER_CHECK(group_ == nullptr);
  group_ = &group;
  memory_.buffers += group.num_bytes();
}

void GpuTransformer::sum_over_ranks(const Pass& pass, float* values, int32_t width) {
  const Fold fold = shard_.numerics == Numerics::kStrict ? Fold::kTree : Fold::kRankOrder;
  const size_t count = static_cast<size_t>(pass.sizes.rows) * static_cast<size_t>(width);
  group_->all_reduce_sum(*stream_, values, count, fold);
}

// x [rows, hidden]
void GpuTransformer::embed(const Pass& pass) {
  const GpuBuffers& b = *buffers_;
  const int32_t hidden = config_.hidden_dim;
  ops_.embed(*stream_,
             {.out = b.x,
              .table = weights_->embedding,
              .type = weights_->embedding_type,
              .is_packed = weights_->embedding_is_packed,
              .n_rows = static_cast<int32_t>(shard_.vocab.size()),
              .n = hidden,
              .first_id = static_cast<int32_t>(shard_.vocab.begin),
              .max_rows = pass.sizes.rows,
              .step = pass.step});
  sum_over_ranks(pass, b.x, hidden);
  const float* table = weights_->positions;
  if (table == nullptr && config_.embedding_scale == 1.0f) return;
  if (table != nullptr) table += static_cast<ptrdiff_t>(config_.position_offset) * hidden;
  ops_.add_positions(*stream_,
                     {.x = b.x,
                      .table = table,
                      .factor = config_.embedding_scale,
                      .n = hidden,
                      .max_rows = pass.sizes.rows,
                      .step = pass.step});
}

gpu::NormArgs GpuTransformer::norm_args(const Pass& pass,
                                        const GpuNorm& norm,
                                        const gpu::Matrix& next) const {
  return {.out = input(buffers_->normed, next),
          .x = buffers_->x,
          .weight = norm.weight,
          .eps = config_.norm_eps,
          .selected = pass.selected,
          .max_rows = pass.sizes.rows,
          .step = pass.step};
}

// The norm of x in front of the product with `next`; x itself where there is none.
void GpuTransformer::norm(const Pass& pass, const GpuNorm& norm, const gpu::Matrix& next) {
  const gpu::NormArgs args = norm_args(pass, norm, next);
  if (config_.norm == NormKind::kRms && norm.weight != nullptr) {
    ops_.norm(*stream_, args);
  } else {
    const bool subtracts_mean = norm.weight != nullptr;
    ops_.add_norm(*stream_, {.norm = args, .subtracts_mean = subtracts_mean, .bias = norm.bias});
  }
}

// x += the sum of the ranks' parts, where that has a norm its norm, then the next norm of x.
void GpuTransformer::add_and_norm(const Pass& pass,
                                  const GpuNorm& of_part,
                                  const GpuNorm& norm,
                                  const gpu::Matrix& next) {
  const Fold fold = shard_.numerics == Numerics::kStrict ? Fold::kTree : Fold::kRankOrder;
  float* const part = buffers_->part;
  gpu::NormArgs args = norm_args(pass, norm, next);
  const bool is_rms = config_.norm == NormKind::kRms;
  const bool is_plain = of_part.weight == nullptr && config_.residual_scale == 1.0f;
  if (is_plain && is_rms && norm.weight != nullptr) {
    group_->sum_and_norm(*stream_,
                         {.norm = args,
                          .part = part,
                          .fold = fold,
                          .next = next.data,
                          .next_bytes = bytes_of(next)});
    return;
  }
  sum_over_ranks(pass, part, config_.hidden_dim);
  args.part = part;
  ops_.add_norm(*stream_,
                {.norm = args,
                 .part_weight = of_part.weight,
                 .factor = config_.residual_scale,
                 .subtracts_mean = !is_rms && norm.weight != nullptr,
                 .bias = norm.bias});
}

// Of an MLP beside attention, which reads the same norm unless it has its own.
void GpuTransformer::norm_beside_attention(const Pass& pass, const GpuLayerWeights& w) {
  const bool has_own = w.mlp_norm.weight != nullptr;
  const bool is_there = activation_type(w.qkv.type) == activation_type(w.gate_up.type);
  if (has_own || !is_there) norm(pass, has_own ? w.mlp_norm : w.attn_norm, w.gate_up);
}

// x += part, by its norm where it has one, and times `scale`: nothing reads x yet.
void GpuTransformer::add_part(const Pass& pass, const GpuNorm& of_part, float scale) {
  ops_.add_norm(*stream_,
                {.norm = {.out = {.data = nullptr, .n = config_.hidden_dim},
                          .x = buffers_->x,
                          .part = buffers_->part,
                          .eps = config_.norm_eps,
                          .max_rows = pass.sizes.rows,
                          .step = pass.step},
                 .part_weight = of_part.weight,
                 .factor = config_.residual_scale,
                 .scale = scale});
}

gpu::ProductArgs GpuTransformer::product(const Pass& pass,
                                         void* in,
                                         const gpu::Matrix& weights,
                                         const float* bias) const {
  return {.in = input(in, weights),
          .weights = weights,
          .bias = bias,
          .selected = pass.selected,
          .max_rows = pass.selected ? pass.sizes.logit_rows : pass.sizes.rows,
          .step = pass.step};
}

// Queries [rows, heads, head_dim], with their positions; keys and values to the pages.
void GpuTransformer::project(const Pass& pass, int32_t layer) {
  const GpuBuffers& b = *buffers_;
  const GpuLayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const bool is_local = config_.local_rope && config_.window_of(layer) > 0;
  const gpu::RotaryView rotary = is_local ? b.local_rotary : b.rotary;
  gpu::QkvArgs to = {.queries = b.queries,
                     .n_heads = w.n_heads,
                     .kv = b.kv[static_cast<size_t>(config_.kv_layer_of(layer))],
                     .rotary = config_.has_rope(layer) ? rotary : gpu::RotaryView{}};
  if (layer >= config_.n_kv_layers()) to.kv.n_kv_heads = 0;  // it reads another's
  if (config_.is_latent()) return project_latent(pass, w, to);
  const gpu::ProductArgs qkv = product(pass, b.normed, w.qkv, w.qkv_bias);
  if (weights_->qkv_is_fused) return ops_.qkv_product(*stream_, qkv, to);
  ops_.store_product(*stream_, qkv, {b.qkv});
  if (b.squares != nullptr) sum_squares(pass);
  ops_.rope_write(*stream_,
                  {.qkv = b.qkv,
                   .q_norm = w.q_norm,
                   .k_norm = w.k_norm,
                   .v_norm = w.v_norm,
                   .eps = config_.norm_eps,
                   .to = to,
                   .max_rows = pass.sizes.rows,
                   .step = pass.step,
                   .norm = head_norm(config_.qk_norm_span),
                   .squares = b.squares,
                   .all = {config_.n_heads, config_.n_kv_heads},
                   .interleaved = config_.rope.interleaved,
                   .query_factors = b.query_factors,
                   .k_is_v = config_.k_is_v(layer)});
}

// Of query and key heads of all ranks: of each head one rank knows the sum, the others add zeros.
// A KV head that several ranks hold is summed by the one with its first query head.
void GpuTransformer::sum_squares(const Pass& pass) {
  const int32_t group = config_.n_heads / config_.n_kv_heads;
  const auto kv_heads = static_cast<int32_t>(shard_.kv_heads.size());
  const bool is_first = shard_.kv_heads.begin * group >= shard_.heads.begin;
  ops_.head_squares(*stream_,
                    {.sums = buffers_->squares,
                     .qkv = buffers_->qkv,
                     .all = {config_.n_heads, config_.n_kv_heads},
                     .first_head = static_cast<int32_t>(shard_.heads.begin),
                     .first_kv_head = static_cast<int32_t>(shard_.kv_heads.begin),
                     .n_heads = static_cast<int32_t>(shard_.heads.size()),
                     .n_kv_heads = kv_heads,
                     .n_summed_kv_heads = is_first ? kv_heads : 0,
                     .head_dim = config_.head_dim,
                     .max_rows = pass.sizes.rows,
                     .step = pass.step});
  sum_over_ranks(pass, buffers_->squares, config_.n_heads + config_.n_kv_heads);
}

// attended [rows, heads * value_dim]
void GpuTransformer::attend(const Pass& pass, int32_t layer) {
  const GpuBuffers& b = *buffers_;
  const GpuLayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const gpu::KvView& kv = b.kv[static_cast<size_t>(config_.kv_layer_of(layer))];
  const gpu::Activations sums = {b.sums, gpu::Type::kF32, w.n_heads * kv.head_dim};
  ops_.attention(*stream_,
                 {.out = config_.is_latent() ? sums : input(b.attended, w.o),
                  .queries = b.queries,
                  .n_heads = w.n_heads,
                  .scale = score_scale(config_, kv.head_dim),
                  .window = static_cast<int32_t>(config_.window_of(layer)),
                  .kv = kv,
                  .scratch = b.attention_scratch,
                  .max_rows = pass.sizes.rows,
                  .max_items = pass.sizes.items,
                  .max_splits = pass.sizes.splits,
                  .step = pass.step,
                  .softcap = config_.attention_softcap,
                  .slopes = b.slopes,
                  .sinks = w.sinks});
  if (config_.is_latent()) make_values(pass, w);
}

// part [rows, hidden], of this rank.
void GpuTransformer::mlp(const Pass& pass, const GpuLayerWeights& w) {
  const GpuBuffers& b = *buffers_;
  if (w.has_experts() && !config_.experts.beside_mlp) {
    return experts_->compute(
        *stream_, ops_, w, {b.x, b.normed, b.part, pass.sizes.rows, pass.step});
  }
  const gpu::ProductArgs gate_up = product(pass, b.normed, w.gate_up, w.gate_up_bias);
  const gpu::Activations gated = input(b.gated, w.down);  // [rows, ffn]
  if (weights_->mlp_is_fused) {
    ops_.swiglu_product(*stream_, gate_up, {gated});
  } else {
    ops_.store_product(*stream_, gate_up, {b.gate_up});
    ops_.activate(*stream_,
                  {.out = gated,
                   .x = b.gate_up,
                   .kind = config_.activation,
                   .is_gated = config_.gated_mlp,
                   .max_rows = pass.sizes.rows,
                   .step = pass.step});
  }
  ops_.store_product(*stream_, product(pass, b.gated, w.down, w.down_bias), {b.part});
}

void GpuTransformer::bend_logits(const Pass& pass) {
  if (config_.logit_scale == 1.0f && config_.logit_softcap == 0.0f) return;
  ops_.bend_logits(*stream_,
                   {.logits = buffers_->logits,
                    .n = static_cast<int32_t>(shard_.vocab.size()),
                    .factor = config_.logit_scale,
                    .cap = config_.logit_softcap,
                    .max_rows = pass.sizes.logit_rows,
                    .step = pass.step});
}

void GpuTransformer::run(const gpu::StepView& step, const LaunchSizes& sizes) {
  const GpuBuffers& b = *buffers_;
  Pass pass = {.step = step, .sizes = sizes};
  const GpuNorm* of_part = nullptr;  // the norm of what waits in part; null: nothing does
  const auto next_norm = [&](const GpuNorm& next, const gpu::Matrix& weights) {  // x += part
    if (of_part == nullptr) return norm(pass, next, weights);
    add_and_norm(pass, *of_part, next, weights);
  };

  embed(pass);
  if (config_.per_layer_dim > 0) embed_per_layer(pass);
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    const GpuLayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
    next_norm(w.attn_norm, w.qkv);
    project(pass, layer);
    // Keys and values are stored: without logits that was all.
    if (layer + 1 == config_.n_kv_layers() && sizes.logit_rows == 0) return;
    attend(pass, layer);
    ops_.store_product(*stream_, product(pass, b.attended, w.o, w.o_bias), {b.part});

    if (!config_.parallel_mlp) {
      add_and_norm(pass, w.attn_post_norm, w.mlp_norm, first_of_mlp(w));
    } else {  // both from x as it was
      norm_beside_attention(pass, w);
      sum_over_ranks(pass, b.part, config_.hidden_dim);
      add_part(pass, {}, 1.0f);
    }
    mlp(pass, w);  // part [rows, hidden]
    of_part = end_layer(pass, layer);
  }

  pass.selected = true;
  next_norm(weights_->final_norm, weights_->head);
  ops_.store_product(*stream_, product(pass, b.normed, weights_->head, nullptr), {b.logits});
  bend_logits(pass);  // logits [logit rows, vocab]
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
  const int32_t num_layers = sizes.logit_rows == 0 ? config_.n_kv_layers() - 1 : config_.n_layers;
  const auto add = [&](uint64_t count, int32_t width) {
    sum_traffic_.num_sums += count;
    sum_traffic_.num_bytes +=
        count * static_cast<uint64_t>(sizes.rows) * static_cast<uint64_t>(width) * sizeof(float);
  };
  uint64_t num_sums = 1;
  for (int32_t layer = 0; layer < num_layers; ++layer)
    num_sums += config_.has_experts(layer) && config_.experts.beside_mlp ? 3 : 2;
  add(num_sums, config_.hidden_dim);
  if (config_.per_layer_dim > 0) add(1, config_.n_layers * config_.per_layer_dim);
  if (buffers_->squares == nullptr) return;
  add(static_cast<uint64_t>(config_.n_layers), config_.n_heads + config_.n_kv_heads);
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
    ops_.fill_blocks(*stream_,
                     {.kv = b.kv_on_device,
                      .num_layers = static_cast<int32_t>(b.kv.size()),
                      .blocks = names,
                      .num_blocks = static_cast<int32_t>(count),
                      .poison = poison});
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
