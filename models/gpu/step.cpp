// See step.h.
#include "models/gpu/step.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/ops/gpu/attention_plan.h"
#include "runtime/ops/gpu/tiles.h"

namespace outrider {
namespace {

// Where the next array begins; device addresses are aligned as these offsets are.
size_t place(size_t& end, int64_t count, size_t element) {
  constexpr size_t kAlignment = 16;
  const size_t begin = (end + kAlignment - 1) / kAlignment * kAlignment;
  end = begin + static_cast<size_t>(count) * element;
  return begin;
}

int32_t whole_row_tiles(int32_t rows) { return gpu::padded(rows, gpu::kTileRows); }

}  // namespace

GpuStep::GpuStep(gpu::Device& device,
                 const ModelConfig& config,
                 const ModelShard& shard,
                 const ModelOptions& options,
                 int32_t max_positions)
    : options_(options),
      max_positions_(max_positions),
      table_stride_((max_positions + options.block_size - 1) / options.block_size),
      rows_per_item_(gpu::kMaxItemRows),
      num_processors_(device.info().num_processors) {
  // One plan serves all layers: that of the layer with the fewest rows in an item.
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const ModelShard own = shard_of_layer(config, shard, layer);
    const auto group = static_cast<int32_t>(own.heads.size() / own.kv_heads.size());
    const int32_t most = gpu::rows_per_attention_item(group, config.head_dim_of(layer));
    if (layer > 0 && most >= rows_per_item_) continue;
    group_ = group;
    kv_heads_ = static_cast<int32_t>(own.kv_heads.size());
    rows_per_item_ = most;
  }
  const int32_t rows = options.max_rows;
  size_t end = sizeof(gpu::StepCounts);
  tokens_ = place(end, rows, sizeof(int32_t));
  positions_ = place(end, rows, sizeof(int32_t));
  sequences_ = place(end, rows, sizeof(int32_t));
  logit_rows_ = place(end, options.max_logit_rows, sizeof(int32_t));
  items_ = place(end, rows, sizeof(gpu::AttentionItem));
  tables_ =
      place(end, int64_t{rows} * table_stride_, sizeof(int32_t));  // last: sent as far as used
  pinned_ = gpu::PinnedBuffer(device, end);
  device_ = gpu::Buffer(device, end);
  const std::byte* const base = device_.as<std::byte>();
  const auto on_device = [base](size_t offset) {
    return reinterpret_cast<const int32_t*>(base + offset);
  };
  view_ = {.counts = reinterpret_cast<const gpu::StepCounts*>(base),
           .tokens = on_device(tokens_),
           .positions = on_device(positions_),
           .sequence_of_row = on_device(sequences_),
           .block_tables = on_device(tables_),
           .table_stride = table_stride_,
           .logit_rows = on_device(logit_rows_),
           .attention_items = reinterpret_cast<const gpu::AttentionItem*>(base + items_)};
}

// Only blocks that hold positions of the step or before it.
void GpuStep::fill_tables(const Batch& batch) {
  int32_t* const tables = at<int32_t>(tables_);
  for (size_t row = 0; row < batch.tokens.size(); ++row) {
    OUTRIDER_CHECK(batch.positions[row] < max_positions_);
    const auto sequence = static_cast<size_t>(batch.sequence_of_row[row]);
    const auto num_used = static_cast<size_t>(batch.positions[row] / options_.block_size) + 1;
    const bool is_last = row + 1 == batch.tokens.size() ||
                         batch.sequence_of_row[row + 1] != batch.sequence_of_row[row];
    if (!is_last) continue;  // rows of a sequence ascend
    std::copy_n(batch.block_tables[sequence].begin(),
                num_used,
                tables + sequence * static_cast<size_t>(table_stride_));
  }
}

// Items of one tile, which are done the soonest, where all their blocks run at once.
gpu::AttentionPlan GpuStep::plan_attention(const Batch& batch) {
  const gpu::AttentionRows rows = {batch.positions, batch.sequence_of_row};
  const std::span items(at<gpu::AttentionItem>(items_), static_cast<size_t>(options_.max_rows));
  const int32_t of_one_tile = std::min(gpu::rows_of_attention_tile(group_), rows_per_item_);
  const gpu::AttentionPlan plan = gpu::plan_attention(rows, group_, of_one_tile, items);
  if (plan.num_items * kv_heads_ * plan.max_splits <= num_processors_) return plan;
  return gpu::plan_attention(rows, group_, rows_per_item_, items);
}

LaunchSizes GpuStep::fill(const Batch& batch) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  const auto logit_rows = static_cast<int32_t>(batch.logit_rows.size());
  OUTRIDER_CHECK(batch.block_tables.size() <= static_cast<size_t>(options_.max_rows));
  std::ranges::copy(batch.tokens, at<int32_t>(tokens_));
  std::ranges::copy(batch.positions, at<int32_t>(positions_));
  std::ranges::copy(batch.sequence_of_row, at<int32_t>(sequences_));
  std::ranges::copy(batch.logit_rows, at<int32_t>(logit_rows_));
  const gpu::AttentionPlan plan = plan_attention(batch);
  fill_tables(batch);
  *at<gpu::StepCounts>(0) = {
      .num_rows = rows, .num_logit_rows = logit_rows, .num_attention_items = plan.num_items};
  num_used_bytes_ =
      tables_ + batch.block_tables.size() * static_cast<size_t>(table_stride_) * sizeof(int32_t);
  return launch_sizes(rows, logit_rows, plan);
}

LaunchSizes GpuStep::launch_sizes(int32_t rows,
                                  int32_t logit_rows,
                                  const gpu::AttentionPlan& plan) const {
  if (rows > kMostRecordedRows) return {rows, logit_rows, plan.num_items, plan.max_splits};
  const int32_t tiled = std::min(options_.max_rows, whole_row_tiles(rows));
  const gpu::AttentionBucket bucket = gpu::attention_bucket(plan, tiled);
  // No logits, few (a prompt's end), or of every row (a verification).
  int32_t logits = std::min(tiled, whole_row_tiles(logit_rows));
  if (logits > gpu::kTileRows) logits = tiled;
  return {tiled, std::min(logits, options_.max_logit_rows), bucket.max_items, bucket.max_splits};
}

std::vector<LaunchSizes> GpuStep::recorded_sizes() const {
  std::vector<LaunchSizes> all;
  const int32_t most_rows = std::min(kMostRecordedRows, options_.max_rows);
  const int32_t most_splits = (max_positions_ + gpu::kSplitPositions - 1) / gpu::kSplitPositions;
  for (int32_t rows = 1; rows <= most_rows; ++rows) {
    for (int32_t splits = 1; splits < 2 * most_splits; splits *= 2) {
      for (int32_t items = 1; items < 2 * rows; items *= 2) {
        const gpu::AttentionPlan plan = {.num_items = std::min(items, rows),
                                         .max_splits = std::min(splits, most_splits)};
        all.push_back(launch_sizes(rows, std::min(rows, options_.max_logit_rows), plan));
      }
    }
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void GpuStep::upload(gpu::Stream& stream) const {
  stream.upload(device_.data(), pinned_.as<std::byte>(), num_used_bytes_);
}

}  // namespace outrider
