// See experts.h.
#include "models/forward/experts.h"

#include <algorithm>
#include <numeric>

namespace outrider {
namespace {

// Many, because the rows of a prompt spread over the experts, and all weights are read for so many.
constexpr int64_t kMostRows = 512;

}  // namespace

ExpertMlp::ExpertMlp(const ModelConfig& config, const ModelShard& shard, int64_t max_rows)
    : config_(config),
      shard_(shard),
      most_rows_(std::min(max_rows, kMostRows)),
      num_slices_(std::max<int64_t>(1, std::ssize(shard.expert_slices))),
      expert_slice_ends_(slice_ends(shard.expert_slices, 1)),
      shared_slice_ends_(slice_ends(shard.shared_slices, 1)),
      next_(static_cast<size_t>(config.experts.count)),
      every_row_(static_cast<size_t>(most_rows_)) {
  const auto chosen = static_cast<size_t>(most_rows_ * config.experts.per_row);
  ids_.resize(chosen);
  weights_.resize(chosen);
  row_ids_.resize(chosen);
  factors_.resize(std::max(chosen, every_row_.size()));
  groups_.reserve(next_.size());
  std::iota(every_row_.begin(), every_row_.end(), 0);
}

std::vector<StepBuffer> ExpertMlp::buffers() {
  const int64_t chosen = most_rows_ * config_.experts.per_row;
  const int64_t units =
      std::max(chosen * shard_.expert_ffn.size(), most_rows_ * shard_.shared_ffn.size());
  return {{&logits_, {most_rows_, config_.experts.count + 1}},
          {&normed_, {config_.experts.beside_mlp ? most_rows_ : 0, config_.hidden_dim}},
          {&gathered_, {chosen, config_.hidden_dim}},
          {&gate_up_, {2, units}},
          {&gated_, {units}},
          {&slices_, {num_slices_ == 1 ? 0 : most_rows_, num_slices_, config_.hidden_dim}}};
}

void ExpertMlp::choose(ops::Context& ctx, const LayerWeights& w, const float* in, int64_t rows) {
  const ExpertsConfig& experts = config_.experts;
  ops::linear(ctx, logits_, in, rows, w.router, {data_or_null(w.router_bias)});
  ops::choose_experts(ctx,
                      ids_.data(),
                      weights_.data(),
                      {logits_, rows, w.router.n_out()},
                      {.count = experts.count,
                       .per_row = experts.per_row,
                       .sigmoid = experts.sigmoid,
                       .correction = data_or_null(w.router_correction),
                       .groups = experts.groups,
                       .chosen_groups = experts.chosen_groups,
                       .normalised = experts.normalised,
                       .scale = experts.scale});
  if (w.expert_scale.empty()) return;
  const auto chosen = static_cast<size_t>(rows * experts.per_row);
  for (size_t i = 0; i < chosen; ++i) {
    weights_[i] *= w.expert_scale[static_cast<size_t>(ids_[i])];
  }
}

// x itself where there is no such norm.
const float* ExpertMlp::normed(ops::Context& ctx,
                               const std::vector<float>& weight,
                               const float* x,
                               int64_t rows) {
  if (weight.empty()) return x;
  ops::rms_norm(ctx, normed_, x, weight.data(), rows, config_.hidden_dim, config_.norm_eps);
  return normed_;
}

// Rows in order of the experts they chose, the rows of an expert ascending.
void ExpertMlp::group_rows(int64_t rows) {
  const auto per_row = static_cast<size_t>(config_.experts.per_row);
  const size_t chosen = static_cast<size_t>(rows) * per_row;
  std::fill(next_.begin(), next_.end(), 0);
  for (size_t i = 0; i < chosen; ++i) ++next_[static_cast<size_t>(ids_[i])];
  groups_.clear();
  int64_t begin = 0;
  for (size_t e = 0; e < next_.size(); ++e) {
    const int64_t end = begin + next_[e];
    if (end > begin) groups_.push_back({static_cast<int64_t>(e), begin, end});
    next_[e] = begin;
    begin = end;
  }
  num_read_ += std::ssize(groups_);
  for (size_t i = 0; i < chosen; ++i) {
    const auto to = static_cast<size_t>(next_[static_cast<size_t>(ids_[i])]++);
    row_ids_[to] = static_cast<int32_t>(i / per_row);
    factors_[to] = weights_[i];
  }
}

// gated [rows, ffn] of gate_up [rows, 2 ffn]
void ExpertMlp::activate(ops::Context& ctx, int64_t rows, int64_t ffn) {
  if (config_.experts.swiglu.limit > 0.0f) {
    ops::clamped_swiglu(ctx, gated_, gate_up_, rows * ffn, config_.experts.swiglu);
  } else {
    ops::activate_mul(ctx, gated_, gate_up_, rows, ffn, config_.activation);
  }
}

void ExpertMlp::add_experts(ops::Context& ctx, const LayerWeights& w, const float* in) {
  const int64_t ffn = shard_.expert_ffn.size();
  const int64_t chosen = groups_.back().end;
  const auto row_ids = std::span(row_ids_).first(static_cast<size_t>(chosen));
  ops::gather_rows(ctx, gathered_, in, row_ids, config_.hidden_dim);
  ops::expert_linear(
      ctx, gate_up_, gathered_, {&w.gate_up, 2 * ffn, data_or_null(w.gate_up_bias)}, groups_);
  activate(ctx, chosen, ffn);
  ops::add_expert_linear(ctx,
                         {slices_, row_ids_.data(), factors_.data(), expert_slice_ends_},
                         gated_,
                         {&w.down, config_.hidden_dim, data_or_null(w.down_bias)},
                         groups_);
}

// As one more expert, with every row.
void ExpertMlp::add_shared(ops::Context& ctx,
                           const LayerWeights& w,
                           const float* in,
                           int64_t rows) {
  const int64_t ffn = shard_.shared_ffn.size();
  std::fill_n(factors_.begin(), rows, 1.0f);
  if (config_.experts.shared_gate) {
    const int64_t count = config_.experts.count;
    for (int64_t r = 0; r < rows; ++r) {
      factors_[static_cast<size_t>(r)] = logits_[r * (count + 1) + count];
    }
    ops::sigmoid(ctx, factors_.data(), rows);
  }
  ops::linear(ctx, gate_up_, in, rows, w.shared_gate_up);
  activate(ctx, rows, ffn);
  const ops::ExpertRows all = {0, 0, rows};
  ops::add_expert_linear(ctx,
                         {slices_, every_row_.data(), factors_.data(), shared_slice_ends_},
                         gated_,
                         {&w.shared_down, config_.hidden_dim},
                         {&all, 1});
}

void ExpertMlp::compute(
    ops::Context& ctx, const LayerWeights& w, const float* in, int64_t rows, float* part) {
  const int64_t hidden = config_.hidden_dim;
  float* const slices = slices_;
  for (int64_t first = 0; first < rows; first += most_rows_) {
    const int64_t count = std::min(most_rows_, rows - first);
    const float* const own = in + first * hidden;
    if (num_slices_ == 1) slices_ = part + first * hidden;
    std::fill_n(slices_, count * num_slices_ * hidden, 0.0f);
    choose(ctx, w, normed(ctx, w.router_norm, own, count), count);
    group_rows(count);
    add_experts(ctx, w, normed(ctx, w.experts_norm.weight, own, count));
    if (config_.experts.shared_ffn_dim > 0) add_shared(ctx, w, own, count);
    if (num_slices_ > 1) {
      ops::fold_slices(ctx, part + first * hidden, slices_, count, num_slices_, hidden);
    }
  }
  slices_ = slices;
}

}  // namespace outrider
