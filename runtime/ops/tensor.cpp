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
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/half.h"

namespace outrider::ops {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

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

std::byte* map_huge(size_t num_bytes) {
  const size_t mapped = num_bytes + kAlignment + kHugePage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const size_t address = reinterpret_cast<size_t>(base);
  std::byte* block = static_cast<std::byte*>(base) + (kHugePage - address % kHugePage) % kHugePage;
  madvise(block, num_bytes + kAlignment, MADV_HUGEPAGE);  // a wish; small pages work too
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

// Writes inner elements [begin, end) of the rows, begin even. The inner loop runs over outputs, so
// that writes are contiguous and the rows' cache lines stay in the first cache.
void pack_block(std::byte* panel, const PanelRows& source, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t lane = 0; lane < source.count; ++lane) {
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

// The common case, bf16 as bf16: two elements at a time, written as the dword the kernels read.
void pack_bf16_block(std::byte* panel, const PanelRows& source, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 2) {
    uint32_t* out = reinterpret_cast<uint32_t*>(panel) + i / 2 * cpu::kPanel + source.first;
    for (int64_t lane = 0; lane < source.count; ++lane) {
      std::memcpy(out + lane, source.rows[static_cast<size_t>(lane)] + i * 2, sizeof(uint32_t));
    }
  }
}

void pack_panel(std::byte* panel, const PanelRows& source, int64_t n_in) {
  constexpr int64_t kBlock = 32;
  const bool same_bf16 = source.from == DType::kBF16 && source.to == DType::kBF16;
  for (int64_t begin = 0; begin < n_in; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n_in);
    const int64_t pairs_end = same_bf16 ? begin + (end - begin) / 2 * 2 : begin;
    pack_bf16_block(panel, source, begin, pairs_end);
    pack_block(panel, source, pairs_end, end);
  }
}

}  // namespace

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

AlignedBytes allocate_bytes(size_t num_bytes) {
  std::byte* memory = nullptr;
  if (num_bytes <= physical_bytes()) {
    memory = num_bytes >= kHugePage ? map_huge(num_bytes) : allocate_small(num_bytes);
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

}  // namespace outrider::ops
