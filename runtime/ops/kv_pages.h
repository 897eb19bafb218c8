// The paged memory of keys and values: its types, and what is done to whole vectors of it. Read by
// attention (ops.h), owned by models/forward/kv_memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace outrider::ops {

// What a number of a key or value is kept in. kBF16 rounds to nearest even. kInt8 has a scale for
// each vector, of its own numbers alone: its largest magnitude becomes 127. Attention widens them
// to float, or multiplies them as bf16 where activations are rounded (cpu/rounded_attention.h).
enum class KvType : uint8_t { kF32, kBF16, kInt8 };
KvType kv_type_from_name(const std::string& name);  // of kv_cache_dtype; throws Error
const char* kv_type_name(KvType type);
// Of a vector of so many numbers, with its scale if it has one.
int64_t kv_vector_bytes(KvType type, int64_t head_dim);

// All keys of a layer, or all values: [num_blocks, n_kv_heads, block_size] vectors of head_dim.
struct KvVectors {
  std::byte* data = nullptr;
  float* scales = nullptr;  // one for each vector, of kInt8 only
};

// One layer's paged KV memory of one rank. Values may be the keys themselves.
struct KvPages {
  KvVectors keys;
  KvVectors values;
  int64_t num_blocks = 0;
  int64_t n_kv_heads = 0;
  int64_t block_size = 0;
  int64_t head_dim = 0;
  KvType type = KvType::kF32;

  int64_t vectors_per_block() const { return n_kv_heads * block_size; }
  // Of a position's vector, counted from the first of all blocks.
  int64_t vector_at(int64_t block, int64_t kv_head, int64_t slot) const {
    return (block * n_kv_heads + kv_head) * block_size + slot;
  }
};

// Keys and values of vectors first .. first + count - 1 become zeros, or NaN.
enum class KvFill : uint8_t { kZeros, kNan };
void kv_fill(const KvPages& pages, int64_t first, int64_t count, KvFill fill);
// Keys and values of vectors from .. from + count - 1 also become those from `to` on.
void kv_copy(const KvPages& pages, int64_t from, int64_t to, int64_t count);

}  // namespace outrider::ops
