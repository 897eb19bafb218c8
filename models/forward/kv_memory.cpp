// See kv_memory.h.
#include "models/forward/kv_memory.h"

#include <algorithm>

#include "models/forward/step_buffer.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

// Keys and values; of latent attention these lie in those.
int64_t num_halves(const ModelConfig& config) { return config.is_latent() ? 1 : 2; }

int64_t floats_per_block(const ops::KvPages& pages) {
  return pages.n_kv_heads * pages.block_size * pages.head_dim;
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
                          .head_dim = config.head_dim_of(layer)};
    const int64_t block = floats_per_block(pages);
    const size_t half_bytes = checked_bytes({pages.num_blocks, block});
    const size_t all_bytes = checked_bytes({num_halves(config), pages.num_blocks, block});
    memory_.push_back(ops::allocate_bytes(all_bytes, ctx.plan().nodes));
    num_bytes_ += all_bytes;
    std::byte* const begin = memory_.back().get();
    pages.keys = reinterpret_cast<float*>(begin);
    pages.values = reinterpret_cast<float*>(begin + all_bytes - half_bytes);
    pages_.push_back(pages);
  }
}

size_t KvMemory::bytes_per_block(const ModelConfig& config,
                                 const ModelShard& shard,
                                 int32_t block_size) {
  size_t total = 0;
  for (int32_t layer = 0; layer < config.n_kv_layers(); ++layer) {
    const int64_t n_kv_heads = shard_of_layer(config, shard, layer).kv_heads.size();
    total += checked_bytes({num_halves(config), n_kv_heads, block_size, config.head_dim_of(layer)});
  }
  return total;
}

void KvMemory::clear_blocks(std::span<const int32_t> blocks) const {
  for (const ops::KvPages& pages : pages_) {
    const int64_t size = floats_per_block(pages);
    for (const int32_t block : blocks) {
      check_block(pages, block);
      std::fill_n(pages.keys + block * size, size, 0.0f);
      std::fill_n(pages.values + block * size, size, 0.0f);
    }
  }
}

void KvMemory::copy_block(int32_t from, int32_t to) const {
  for (const ops::KvPages& pages : pages_) {
    check_block(pages, from);
    check_block(pages, to);
    const int64_t size = floats_per_block(pages);
    std::copy_n(pages.keys + from * size, size, pages.keys + to * size);
    std::copy_n(pages.values + from * size, size, pages.values + to * size);
  }
}

}  // namespace outrider
