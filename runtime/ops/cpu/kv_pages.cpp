// Writing keys and values in the type of their pages. Each vector is rounded by itself and by plain
// code, so its bits depend on its own numbers only. See kv_pages.h; called on the compute thread.
#include "runtime/ops/kv_pages.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/half.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

// Below this many numbers one thread is faster than a hand-over.
constexpr int64_t kInlineNumbers = 1 << 17;

int64_t element_bytes(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kBF16 ? 2 : 1;
}

// The largest magnitude; NaN if there is one, whose bits are above those of all numbers.
float largest_magnitude(const float* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  }
  return std::bit_cast<float>(most);
}

// Returns the scale: NaN or infinite when a number is, so that all of the vector reads as NaN.
float quantize_vector(int8_t* out, const float* x, int64_t n) {
  constexpr float kMost = 127.0f;
  constexpr float kTiny = 1e-30f;           // taken for zero: what it divides must stay a number
  constexpr float kRounding = 12582912.0f;  // adding it leaves the integer in the low bits
  const float largest = largest_magnitude(x, n);
  const bool is_zero = largest < kTiny;
  if (is_zero || !std::isfinite(largest)) {
    std::fill_n(out, n, int8_t{0});
    return is_zero ? 0.0f : largest;
  }
  const float factor = kMost / largest;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(x[i] * factor + kRounding) & 0xFFu);
  }
  return largest / kMost;
}

void store_vector(const KvPages& pages, const KvVectors& to, int64_t vector, const float* x) {
  const int64_t n = pages.head_dim;
  std::byte* const data = to.data + vector * n * element_bytes(pages.type);
  switch (pages.type) {
    case KvType::kF32:
      std::memcpy(data, x, static_cast<size_t>(n) * sizeof(float));
      return;
    case KvType::kBF16:
      std::transform(x, x + n, reinterpret_cast<uint16_t*>(data), float_to_bf16);
      return;
    case KvType::kInt8:
      to.scales[vector] = quantize_vector(reinterpret_cast<int8_t*>(data), x, n);
  }
}

}  // namespace

KvType kv_type_from_name(const std::string& name) {
  for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kInt8}) {
    if (name == kv_type_name(type)) return type;
  }
  throw Error("kv_cache_dtype \"" + name + "\" is not one of float32, bfloat16, int8");
}

const char* kv_type_name(KvType type) {
  return type == KvType::kF32 ? "float32" : type == KvType::kBF16 ? "bfloat16" : "int8";
}

int64_t kv_vector_bytes(KvType type, int64_t head_dim) {
  const int64_t scale = type == KvType::kInt8 ? static_cast<int64_t>(sizeof(float)) : 0;
  return head_dim * element_bytes(type) + scale;
}

// All bits set are NaN in both float types, and as a scale.
void kv_fill(const KvPages& pages, int64_t first, int64_t count, KvFill fill) {
  const int byte = fill == KvFill::kNan ? 0xFF : 0;
  const auto bytes = static_cast<size_t>(pages.head_dim * element_bytes(pages.type));
  const auto num_vectors = static_cast<size_t>(count);
  for (const KvVectors& of : {pages.keys, pages.values}) {
    std::memset(of.data + static_cast<size_t>(first) * bytes, byte, num_vectors * bytes);
    if (of.scales != nullptr) std::memset(of.scales + first, byte, num_vectors * sizeof(float));
  }
}

void kv_copy(const KvPages& pages, int64_t from, int64_t to, int64_t count) {
  const int64_t bytes = pages.head_dim * element_bytes(pages.type);
  for (const KvVectors& of : {pages.keys, pages.values}) {
    std::copy_n(of.data + from * bytes, count * bytes, of.data + to * bytes);
    if (of.scales != nullptr) std::copy_n(of.scales + from, count, of.scales + to);
  }
}

void kv_write(Context& ctx,
              const KvPages& pages,
              const PlacedHeads<const float>& keys,
              const PlacedHeads<const float>& values,
              const AttentionRows& rows) {
  const int64_t num_rows = static_cast<int64_t>(rows.positions.size());
  const bool small = num_rows * pages.n_kv_heads * pages.head_dim < kInlineNumbers;
  ctx.threads().for_range(num_rows, small, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t position = rows.positions[static_cast<size_t>(r)];
      const size_t sequence = static_cast<size_t>(rows.sequence_of_row[static_cast<size_t>(r)]);
      const int64_t block =
          rows.block_tables[sequence][static_cast<size_t>(position / pages.block_size)];
      for (int64_t h = 0; h < pages.n_kv_heads; ++h) {
        const int64_t vector = pages.vector_at(block, h, position % pages.block_size);
        const auto from = [r, h](const PlacedHeads<const float>& heads) {
          return heads.data + r * heads.row_stride + h * heads.head_stride;
        };
        store_vector(pages, pages.keys, vector, from(keys));
        store_vector(pages, pages.values, vector, from(values));
      }
    }
  });
}

}  // namespace outrider::ops
