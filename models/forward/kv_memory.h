// The KV pages of one rank's layers: each in the shape of its layer, none for layers that read the
// pages of another. Used by the transformer, on its compute thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/forward/model.h"
#include "runtime/ops/ops.h"

namespace outrider {

class KvMemory {
 public:
  // ctx: where its threads run the memory is taken. Throws Error when there is not so much.
  KvMemory(const ModelConfig& config,
           const ModelShard& shard,
           const ModelOptions& options,
           ops::Context& ctx);

  // Of all layers of a rank, for sizing before construction.
  static size_t bytes_per_block(const ModelConfig& config,
                                const ModelShard& shard,
                                int32_t block_size,
                                ops::KvType type);

  size_t num_bytes() const { return num_bytes_; }
  std::span<const ops::KvPages> pages() const { return pages_; }  // of layers that have any

  void clear_blocks(std::span<const int32_t> blocks) const;
  void copy_block(int32_t from, int32_t to) const;

 private:
  std::vector<ops::AlignedBytes> memory_;
  std::vector<ops::KvPages> pages_;
  size_t num_bytes_ = 0;
};

}  // namespace outrider
