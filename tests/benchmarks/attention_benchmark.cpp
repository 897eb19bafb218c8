// Attention of a model of 1.1B parameters over all its layers, by the type of keys and values,
// positions and rows, on one thread: what a longer context adds to a step.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

// TinyLlama-1.1B.
constexpr int kLayers = 22;
constexpr int64_t kHeads = 32;
constexpr int64_t kKvHeads = 4;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kBlockSize = 16;
constexpr int64_t kMostRows = 512;
constexpr int64_t kWidth = kKvHeads * kHeadDim;

// The KV of one sequence in every layer.
struct Sequence {
  Context context{1};
  std::vector<AlignedBytes> memory;
  std::vector<KvPages> layers;
  std::vector<int32_t> blocks;
  std::vector<float> queries = std::vector<float>(kMostRows * kHeads * kHeadDim);
  std::vector<float> out = std::vector<float>(kMostRows * kHeads * kHeadDim);
  size_t num_bytes = 0;

  Sequence(KvType type, int64_t length) : blocks(static_cast<size_t>(length / kBlockSize)) {
    if (has_bf16_dot()) context.set_activations(Activations::kBF16);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::mt19937 generator(1);
    for (float& value : queries) value = static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f;
    const auto half = static_cast<size_t>(length * kKvHeads * kv_vector_bytes(type, kHeadDim));
    const size_t scales = type == KvType::kInt8 ? static_cast<size_t>(length * kKvHeads) : 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::byte* const at = memory.emplace_back(allocate_bytes(2 * half)).get();
      num_bytes += 2 * half;
      KvPages pages = {.num_blocks = length / kBlockSize,
                       .n_kv_heads = kKvHeads,
                       .block_size = kBlockSize,
                       .head_dim = kHeadDim,
                       .type = type};
      pages.keys.data = at + scales * sizeof(float);
      pages.values.data = pages.keys.data + half;
      if (scales > 0) {
        pages.keys.scales = reinterpret_cast<float*>(at);
        pages.values.scales = reinterpret_cast<float*>(at + half);
      }
      layers.push_back(pages);
      for (int64_t first = 0; first < length; first += kMostRows) write(pages, first, kMostRows);
    }
  }

  AttentionRows rows(std::vector<int32_t>& positions, int64_t first, int64_t count) {
    static const std::vector<int32_t> kOwners(kMostRows, 0);
    static std::span<const int32_t> table;
    table = blocks;
    positions.resize(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    return {positions, std::span(kOwners).first(positions.size()), {&table, 1}};
  }
  void write(const KvPages& pages, int64_t first, int64_t count) {
    std::vector<int32_t> positions;
    const AttentionRows where = rows(positions, first, count);
    kv_write(context,
             pages,
             {queries.data(), 2 * kWidth, kHeadDim},
             {queries.data() + kWidth, 2 * kWidth, kHeadDim},
             where);
  }
};

// One at a time: those of long texts are large.
Sequence& sequence_of(KvType type, int64_t length) {
  static std::pair<KvType, int64_t> held;
  static std::unique_ptr<Sequence> sequence;
  if (sequence == nullptr || held != std::pair(type, length)) {
    sequence.reset();
    sequence = std::make_unique<Sequence>(type, length);
    held = {type, length};
  }
  return *sequence;
}

void attend(benchmark::State& state, KvType type) {
  const int64_t length = state.range(0);
  const int64_t count = state.range(1);
  Sequence& sequence = sequence_of(type, length);
  std::vector<int32_t> positions;
  const AttentionRows where = sequence.rows(positions, length - count, count);
  const Queries queries = {.data = sequence.queries.data(),
                           .stride = kHeads * kHeadDim,
                           .n_heads = kHeads,
                           .scale = 0.125f};
  for (auto _ : state) {
    for (const KvPages& pages : sequence.layers) {
      attention(sequence.context, sequence.out.data(), queries, pages, where);
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(sequence.num_bytes));
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const int64_t length : {4096, 16384}) {
    for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kInt8}) {
      benchmark::RegisterBenchmark(fmt::format("attention/{}", kv_type_name(type)).c_str(),
                                   [type](benchmark::State& state) { attend(state, type); })
          ->ArgNames({"positions", "rows"})
          ->ArgsProduct({{length}, {1, 5, kMostRows}})
          ->Unit(benchmark::kMillisecond)
          ->MeasureProcessCPUTime();
    }
  }
  return true;
}();

}  // namespace
}  // namespace outrider::ops
