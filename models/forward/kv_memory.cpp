// See kv_memory.h.
#include "models/forward/kv_memory.h"

#include <vector>

#include "models/forward/step_buffer.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

// Keys and values; of latent attention these lie in those.
int64_t num_halves(const ModelConfig& config) { return config.is_latent() ? 1 : 2; }

// Of so many vectors, with their scales.
size_t kv_bytes(std::vector<int64_t> num_vectors, ops::KvType type, int64_t head_dim) {
  num_vectors.push_back(ops::kv_vector_bytes(type, head_dim));
  return checked_bytes(num_vectors) / sizeof(float);
}

// Scales, if there are any, come first, so that all lies as aligned as it can. halves: 1 where the
// values are the keys.
void place(ops::KvPages& pages, std::byte* begin, size_t halves) {
  const auto half = static_cast<size_t>(pages.num_blocks * pages.vectors_per_block());
  size_t bytes = half * static_cast<size_t>(ops::kv_vector_bytes(pages.type, pages.head_dim));
  if (pages.type == ops::KvType::kInt8) {
    pages.keys.scales = reinterpret_cast<float*>(begin);
    pages.values.scales = pages.keys.scales + (halves - 1) * half;
    begin += halves * half * sizeof(float);
    bytes -= half * sizeof(float);
  }
  pages.keys.data = begin;
  pages.values.data = begin + (halves - 1) * bytes;
}

void check_block(const ops::KvPages& pages, int32_t block) {
  OUTRIDER_CHECK(block >= 0 && block < pages.num_blocks);
}

}  // namespace

KvMemory::KvMemory(const ModelConfig& config,
                   const ModelShard& shard,
                   const ModelOptions& options,
                   ops::Context& ctx) {
  for (int32_t layer = 0; layer < config.n_kv_layers(); ++layer) {
    ops::KvPages pages = {.num_blocks = options.num_blocks,
                          .n_kv_heads = shard_of_layer(config, shard, layer).kv_heads.size(),
                          .block_size = options.block_size,
                          .head_dim = config.head_dim_of(layer),
                          .type = options.kv_type};
    const int64_t block = pages.vectors_per_block() * num_halves(config);
    const size_t num_bytes = kv_bytes({pages.num_blocks, block}, pages.type, pages.head_dim);
    memory_.push_back(ops::allocate_bytes(num_bytes, ctx.plan().nodes));
    num_bytes_ += num_bytes;
    place(pages, memory_.back().get(), static_cast<size_t>(num_halves(config)));
    pages_.push_back(pages);
  }
}

size_t KvMemory::bytes_per_block(const ModelConfig& config,
                                 const ModelShard& shard,
                                 int32_t block_size,
                                 ops::KvType type) {
  size_t total = 0;
  for (int32_t layer = 0; layer < config.n_kv_layers(); ++layer) {
    const int64_t n_kv_heads = shard_of_layer(config, shard, layer).kv_heads.size();
    total +=
        kv_bytes({num_halves(config), n_kv_heads, block_size}, type, config.head_dim_of(layer));
  }
  return total;
}

void KvMemory::clear_blocks(std::span<const int32_t> blocks) const {
  for (const ops::KvPages& pages : pages_) {
    for (const int32_t block : blocks) {
      check_block(pages, block);
      ops::kv_fill(
          pages, pages.vector_at(block, 0, 0), pages.vectors_per_block(), ops::KvFill::kZeros);
    }
  }
}

void KvMemory::copy_block(int32_t from, int32_t to) const {
  for (const ops::KvPages& pages : pages_) {
    check_block(pages, from);
    check_block(pages, to);
    ops::kv_copy(
        pages, pages.vector_at(from, 0, 0), pages.vector_at(to, 0, 0), pages.vectors_per_block());
  }
}

}  // namespace outrider
