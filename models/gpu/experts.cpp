// See experts.h.
#include "models/gpu/experts.h"

#include <algorithm>

#include "models/gpu/layout.h"

namespace outrider {
namespace {

// The rows of a prompt spread over the experts, and all weights are read for so many; what they
// take is memory for every pair of a row and an expert.
constexpr int32_t kMostRows = 512;
constexpr int32_t kMostPairs = 8192;

gpu::Activations input(void* data, const gpu::Matrix& weights) {
  return {data, activation_type(weights.type), weights.n_in};
}

gpu::ProductArgs product(const GpuExpertStep& step,
                         void* in,
                         const gpu::Matrix& weights,
                         const float* bias) {
  return {.in = input(in, weights),
          .weights = weights,
          .bias = bias,
          .max_rows = step.max_rows,
          .step = step.view};
}

}  // namespace

int32_t first_layer_with_experts(const ModelConfig& config) {
  int32_t layer = 0;
  while (layer < config.n_layers && !config.has_experts(layer)) ++layer;
  return layer;
}

GpuExpertMlp::GpuExpertMlp(const ModelConfig& config,
                           const ModelShard& shard,
                           int32_t max_rows,
                           gpu::Type activations)
    : config_(config) {
  const GpuExpertLayout layout =
      gpu_layout(config, shard, first_layer_with_experts(config)).experts;
  const ExpertsConfig& experts = config.experts;
  most_rows_ = std::min({max_rows, kMostRows, std::max(1, kMostPairs / experts.per_row)});
  ffn_ = layout.ffn;
  shared_ffn_ = layout.shared_ffn;
  num_slices_ = std::max(1, layout.down.slices.num_slices);
  const int32_t num_pairs = most_rows_ * experts.per_row;
  const int32_t tile_rows = gpu::expert_tile_rows(most_rows_, experts.count, experts.per_row);
  const int32_t num_slots = tile_rows * gpu::max_expert_tiles(num_pairs, experts.count, tile_rows);
  const int64_t hidden = config.hidden_dim;
  const auto place = [this](int64_t count, size_t element) {
    constexpr size_t kAlignment = 256;
    const size_t begin = num_bytes_;
    const size_t end = begin + static_cast<size_t>(count) * element;
    num_bytes_ = (end + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  const auto place_activations = [&](int32_t rows, int32_t n) {
    return place(static_cast<int64_t>(gpu::activation_elements(rows, n)),
                 gpu::type_bytes(activations));
  };
  logits_ = place(int64_t{most_rows_} * num_logits(), sizeof(float));
  ids_ = place(num_pairs, sizeof(int32_t));
  weights_ = place(num_pairs, sizeof(float));
  pairs_ = place(num_slots, sizeof(int32_t));
  // Of fewer rows there may be more tiles, which are smaller.
  tiles_ = place(gpu::max_expert_tiles(num_pairs, experts.count, gpu::kTileRows),
                 sizeof(gpu::ExpertTile));
  num_tiles_ = place(1, sizeof(int32_t));
  gated_ = place_activations(num_slots, ffn_);
  products_ = place(int64_t{num_pairs} * num_slices_ * hidden, sizeof(float));
  if (shared_ffn_ == 0) return;
  shared_gated_ = place_activations(max_rows, shared_ffn_);
  shared_ = place(int64_t{most_rows_} * num_slices_ * hidden, sizeof(float));
}

gpu::RoutedRows GpuExpertMlp::rows_from(int32_t first_row, int32_t max_rows) const {
  const ExpertsConfig& experts = config_.experts;
  return {.first_row = first_row,
          .max_rows = max_rows,
          .num_experts = experts.count,
          .per_row = experts.per_row,
          .tile_rows = gpu::expert_tile_rows(max_rows, experts.count, experts.per_row),
          .ids = at<int32_t>(ids_),
          .weights = at<float>(weights_),
          .pairs = at<int32_t>(pairs_),
          .tiles = at<gpu::ExpertTile>(tiles_),
          .num_tiles = at<int32_t>(num_tiles_)};
}

gpu::RouteArgs GpuExpertMlp::routing(const GpuLayerWeights& w,
                                     const GpuExpertStep& step,
                                     const gpu::RoutedRows& rows) const {
  const ExpertsConfig& experts = config_.experts;
  return {.to = rows,
          .logits = at<float>(logits_),
          .x = step.x,
          .norm_weight = config_.experts.beside_mlp ? w.experts.router_norm : w.mlp_norm.weight,
          .eps = config_.norm_eps,
          .n = config_.hidden_dim,
          .router = w.experts.router,
          .bias = w.experts.router_bias,
          .num_logits = num_logits(),
          .choice = {.count = experts.count,
                     .per_row = experts.per_row,
                     .sigmoid = experts.sigmoid,
                     .correction = w.experts.router_correction,
                     .groups = experts.groups,
                     .chosen_groups = experts.chosen_groups,
                     .normalised = experts.normalised,
                     .scale = experts.scale},
          .expert_scale = w.experts.expert_scale,
          .step = step.view};
}

// What is to be added up of the experts that a piece's rows chose.
gpu::SumExpertsArgs GpuExpertMlp::add_chosen(gpu::Stream& stream,
                                             const gpu::OpTable& ops,
                                             const GpuExpertWeights& w,
                                             const GpuExpertStep& step,
                                             const gpu::RoutedRows& rows) const {
  void* const gated = at<std::byte>(gated_);
  ops.expert_gate_up(stream,
                     product(step, step.normed, w.gate_up, w.gate_up_bias),
                     {rows, input(gated, w.down), config_.activation, config_.experts.swiglu});
  ops.expert_down(stream,
                  product(step, gated, w.down, w.down_bias),
                  {rows, at<float>(products_), num_slices_ > 1});
  return {.rows = rows,
          .part = step.part,
          .products = at<float>(products_),
          .num_slices = num_slices_,
          .n = config_.hidden_dim,
          .step = step.view};
}

// As one more expert, with every row of the piece.
void GpuExpertMlp::add_shared(gpu::Stream& stream,
                              const gpu::OpTable& ops,
                              const GpuExpertWeights& w,
                              const GpuExpertStep& step,
                              gpu::SumExpertsArgs& sum) const {
  gpu::RoutedRows rows = sum.rows;
  rows.tiles = nullptr;
  rows.tile_rows = gpu::expert_tile_rows(rows.max_rows, 1, 1);
  ops.expert_down(stream,
                  product(step, at<std::byte>(shared_gated_), w.shared_down, nullptr),
                  {rows, at<float>(shared_), num_slices_ > 1});
  sum.shared = at<float>(shared_);
  if (config_.experts.shared_gate) sum.gates = at<float>(logits_) + config_.experts.count;
  sum.gate_stride = num_logits();
}

void GpuExpertMlp::compute(gpu::Stream& stream,
                           const gpu::OpTable& ops,
                           const GpuLayerWeights& w,
                           const GpuExpertStep& step) const {
  const GpuExpertWeights& experts = w.experts;
  if (shared_ffn_ > 0) {
    ops.swiglu_product(stream,
                       product(step, step.normed, experts.shared_gate_up, nullptr),
                       {input(at<std::byte>(shared_gated_), experts.shared_down)});
  }
  for (int32_t first = 0; first < step.max_rows; first += most_rows_) {
    const gpu::RoutedRows rows = rows_from(first, std::min(most_rows_, step.max_rows - first));
    ops.route_rows(stream, routing(w, step, rows));
    gpu::SumExpertsArgs sum = add_chosen(stream, ops, experts, step, rows);
    if (shared_ffn_ > 0) add_shared(stream, ops, experts, step, sum);
    ops.sum_experts(stream, sum);
  }
}

}  // namespace outrider
