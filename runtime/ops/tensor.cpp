// Memory for weights and their packing into panels (see tensor.h). Called while a model is loaded;
// filling different panels of one matrix from different threads is safe.
#include "runtime/ops/tensor.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/threads/topology.h"
#include "runtime/ops/half.h"

namespace outrider::ops {
namespace {

static_assert(kRowsPerPanel == cpu::kPanel);

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = kHugePageBytes;

// Lies in the kAlignment bytes before what allocate_bytes returned.
struct MemoryHeader {
  void* base;
  size_t mapped_bytes;  // 0: from aligned_alloc
};
static_assert(sizeof(MemoryHeader) <= kAlignment);

std::byte* place_header(std::byte* block, const MemoryHeader& header) {
  std::memcpy(block, &header, sizeof(header));
  return block + kAlignment;
}

std::byte* map_huge(size_t num_bytes, std::span<const int> nodes) {
  const size_t mapped = num_bytes + kAlignment + kHugePage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const size_t address = reinterpret_cast<size_t>(base);
  std::byte* block = static_cast<std::byte*>(base) + (kHugePage - address % kHugePage) % kHugePage;
  madvise(block, num_bytes + kAlignment, MADV_HUGEPAGE);  // a wish; small pages work too
  cpu::lay_over_nodes(block, num_bytes + kAlignment, nodes);
  return place_header(block, {base, mapped});
}

std::byte* allocate_small(size_t num_bytes) {
  const size_t total = (num_bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
  std::byte* block = static_cast<std::byte*>(std::aligned_alloc(kAlignment, total));
  if (block == nullptr) return nullptr;
  std::memset(block, 0, total);
  return place_header(block, {block, 0});
}

size_t physical_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return SIZE_MAX;
  return static_cast<size_t>(pages) * static_cast<size_t>(page_bytes);
}

size_t packed_bytes(int64_t n_out, int64_t n_in, DType dtype) {
  const std::string what =
      "weight matrix of " + std::to_string(n_out) + " x " + std::to_string(n_in);
  if (n_out < 0 || n_in < 0) throw Error(what + " has a negative size");
  int64_t bytes = 0;
  const bool overflow =
      n_out > INT64_MAX - cpu::kPanel || n_in > INT64_MAX - 2 ||
      __builtin_mul_overflow(
          (n_out + cpu::kPanel - 1) / cpu::kPanel * cpu::kPanel, (n_in + 1) / 2 * 2, &bytes) ||
      __builtin_mul_overflow(bytes, static_cast<int64_t>(dtype_bytes(dtype)), &bytes);
  if (overflow) throw Error(what + " is too large to address");
  return static_cast<size_t>(bytes);
}

float element(const void* row, int64_t i, DType dtype) {
  if (dtype == DType::kF32) return static_cast<const float*>(row)[i];
  const uint16_t bits = static_cast<const uint16_t*>(row)[i];
  return dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

// Element i of a row as the bits of dtype.
uint32_t element_bits(const void* row, int64_t i, DType from, DType to) {
  if (from == to && to != DType::kF32) return static_cast<const uint16_t*>(row)[i];
  const float value = element(row, i, from);
  if (to == DType::kF32) return std::bit_cast<uint32_t>(value);
  return to == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
}

// Source rows that fall into one panel.
struct PanelRows {
  std::array<const std::byte*, cpu::kPanel> rows;
  int64_t first = 0;
  int64_t count = 0;
  DType from;
  DType to;
};

// Inner elements [begin, end) of lanes [first_lane, end_lane) of a panel's rows.
struct Block {
  int64_t begin;
  int64_t end;
  int64_t first_lane;
  int64_t end_lane;
};

// Writes a block element by element; begin is even. The inner loop runs over outputs, so that
// writes are contiguous and the rows' cache lines stay in the first cache.
void pack_elements(std::byte* panel, const PanelRows& source, Block block) {
  for (int64_t i = block.begin; i < block.end; ++i) {
    for (int64_t lane = block.first_lane; lane < block.end_lane; ++lane) {
      const uint32_t bits =
          element_bits(source.rows[static_cast<size_t>(lane)], i, source.from, source.to);
      const int64_t output = source.first + lane;
      if (source.to == DType::kF32) {
        reinterpret_cast<uint32_t*>(panel)[i * cpu::kPanel + output] = bits;
      } else if (source.to == DType::kF16) {
        reinterpret_cast<uint16_t*>(panel)[i * cpu::kPanel + output] = static_cast<uint16_t>(bits);
      } else {
        reinterpret_cast<uint16_t*>(panel)[(i / 2 * cpu::kPanel + output) * 2 + i % 2] =
            static_cast<uint16_t>(bits);
      }
    }
  }
}

// The common case: kPackRows lanes whose type stays, a multiple of 32 elements.
void pack_lanes(std::byte* panel, const PanelRows& source, Block block) {
  static const cpu::KernelTable& kernels = cpu::kernels_of(best_isa());
  std::array<const char*, cpu::kPackRows> rows = {};
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    const auto offset = static_cast<size_t>(block.begin) * dtype_bytes(source.from);
    const std::byte* row = source.rows[static_cast<size_t>(block.first_lane) + lane];
    rows[lane] = reinterpret_cast<const char*>(row + offset);
  }
  const int64_t count = block.end - block.begin;
  const int64_t output = source.first + block.first_lane;
  if (source.to == DType::kF16) {
    auto* out = reinterpret_cast<uint16_t*>(panel) + block.begin * cpu::kPanel + output;
    kernels.pack_words(out, rows.data(), count);
    return;
  }
  // A bf16 panel holds pairs, which lie side by side in the file too.
  const int64_t per_dword = source.to == DType::kBF16 ? 2 : 1;
  auto* out = reinterpret_cast<uint32_t*>(panel) + block.begin / per_dword * cpu::kPanel + output;
  kernels.pack_dwords(out, rows.data(), count / per_dword);
}

// A stretch of the inner dimension for all lanes, then the next: so a panel is written front to
// back.
void pack_panel(std::byte* panel, const PanelRows& source, int64_t n_in) {
  constexpr int64_t kStretch = 32;
  for (int64_t begin = 0; begin < n_in; begin += kStretch) {
    const int64_t end = std::min(begin + kStretch, n_in);
    const bool fast =
        source.from == source.to && source.first % cpu::kPackRows == 0 && end - begin == kStretch;
    const int64_t fast_lanes = fast ? source.count / cpu::kPackRows * cpu::kPackRows : 0;
    for (int64_t lane = 0; lane < fast_lanes; lane += cpu::kPackRows) {
      pack_lanes(panel, source, {begin, end, lane, lane + cpu::kPackRows});
    }
    pack_elements(panel, source, {begin, end, fast_lanes, source.count});
  }
}

}  // namespace

void widen(const void* source, int64_t count, DType dtype, float* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, source, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto* from = static_cast<const std::byte*>(source);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + i * 2, sizeof(bits));
    to[i] = dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
}

void AlignedFree::operator()(void* memory) const {
  if (memory == nullptr) return;
  MemoryHeader header;
  std::memcpy(&header, static_cast<std::byte*>(memory) - kAlignment, sizeof(header));
  if (header.mapped_bytes != 0) {
    munmap(header.base, header.mapped_bytes);
  } else {
    std::free(header.base);
  }
}

AlignedBytes allocate_bytes(size_t num_bytes, std::span<const int> nodes) {
  std::byte* memory = nullptr;
  if (num_bytes <= physical_bytes()) {
    memory = num_bytes >= kHugePage ? map_huge(num_bytes, nodes) : allocate_small(num_bytes);
  }
  if (memory == nullptr) {
    throw Error("no memory for " + std::to_string(num_bytes) + " bytes (" +
                std::to_string(num_bytes >> 20) + " MiB)");
  }
  return AlignedBytes(memory);
}

PackedMatrix::PackedMatrix(int64_t n_out, int64_t n_in, DType dtype)
    : n_out_(n_out),
      n_in_(n_in),
      dtype_(dtype),
      num_bytes_(packed_bytes(n_out, n_in, dtype)),
      data_(allocate_bytes(num_bytes_)) {}

void PackedMatrix::fill_rows(int64_t out_begin,
                             const void* source,
                             int64_t num_rows,
                             int64_t source_stride,
                             DType source_dtype) {
  if (is_quantized()) {
    return quantize_rows(out_begin, {source, num_rows, source_stride, source_dtype});
  }
  OUTRIDER_CHECK(out_begin >= 0 && num_rows >= 0 && num_rows <= n_out_ - out_begin);
  const size_t row_bytes = static_cast<size_t>(source_stride) * dtype_bytes(source_dtype);
  const size_t panel_bytes =
      static_cast<size_t>(cpu::kPanel * ((n_in_ + 1) / 2 * 2)) * dtype_bytes(dtype_);
  const std::byte* next = static_cast<const std::byte*>(source);
  for (int64_t out = out_begin; out < out_begin + num_rows;) {
    PanelRows rows{.rows = {}, .first = out % cpu::kPanel, .from = source_dtype, .to = dtype_};
    rows.count = std::min(cpu::kPanel - rows.first, out_begin + num_rows - out);
    for (int64_t lane = 0; lane < rows.count; ++lane, next += row_bytes) {
      rows.rows[static_cast<size_t>(lane)] = next;
    }
    pack_panel(data_.get() + static_cast<size_t>(out / cpu::kPanel) * panel_bytes, rows, n_in_);
    out += rows.count;
  }
}

void PackedMatrix::read_row(int64_t row, float* out) const {
  if (is_quantized()) return dequantize_row(row, out);
  OUTRIDER_CHECK(row >= 0 && row < n_out_);
  const int64_t panel_elements = cpu::kPanel * ((n_in_ + 1) / 2 * 2);
  const int64_t base = row / cpu::kPanel * panel_elements;
  const int64_t lane = row % cpu::kPanel;
  if (dtype_ == DType::kBF16) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(data_.get()) + base / 2 + lane;
    for (int64_t i = 0; i < n_in_; ++i) {
      const uint32_t pair = pairs[i / 2 * cpu::kPanel];
      out[i] = bf16_to_float(static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16));
    }
  } else if (dtype_ == DType::kF16) {
    const auto* bits = reinterpret_cast<const uint16_t*>(data_.get()) + base + lane;
    for (int64_t i = 0; i < n_in_; ++i) out[i] = f16_to_float(bits[i * cpu::kPanel]);
  } else {
    const auto* values = reinterpret_cast<const float*>(data_.get()) + base + lane;
    for (int64_t i = 0; i < n_in_; ++i) out[i] = values[i * cpu::kPanel];
  }
}

}  // namespace outrider::ops
