// Where an element of a 16-bit or 8-bit matrix lies in device memory: as two matrix instructions
// take it, of which weights are the 16 rows and tokens the columns. mma.m16n8k16 is a warp's, and a
// lane's load is its operand; wgmma.m64nNk16 is four warps', and reads activations by itself. Plain
// arithmetic, the same for host, device and emulation.
//
//   weights      tiles of 16 outputs x 16 inputs: [output tile][input tile][8 outputs g][8 pairs of
//                inputs][output g, output g + 8][2]; of outputs g with g & 2 the pairs lie in the
//                order 4 5 6 7 0 1 2 3, so that a warp that reads one pair of each output finds
//                them in different banks. Of 8 bits a pair's four are [2][output g, output g + 8],
//                so that one shift puts an output's two where 16 bits want them.
//   activations  groups of 64 rows, of tiles of 8 rows x 16 inputs: [group][input tile][8 tiles]
//                [8 rows][16]; of a tile's rows 4 to 7 inputs 8 to 15 lie first. That is wgmma's
//                layout with a swizzle of 32 bytes.
//
// As mma.m16n8k16 counts inputs, lane l of a quad has 2l, 2l + 1, 2l + 8 and 2l + 9; here those are
// inputs 4l to 4l + 3 of the tile. The instruction's sum does not depend on the order.
//
// The inner dimension is padded with zeros to whole input tiles, outputs to whole output tiles;
// rows are padded to whole groups, with anything.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::gpu {

inline constexpr int32_t kTileOutputs = 16;
inline constexpr int32_t kTileRows = 8;
inline constexpr int32_t kGroupRows = 64;
inline constexpr int32_t kTileInner = 16;

constexpr int32_t whole_tiles(int32_t n, int32_t tile) { return (n + tile - 1) / tile; }
constexpr int32_t padded(int32_t n, int32_t tile) { return whole_tiles(n, tile) * tile; }

// Elements of the activations of n inputs for up to max_rows rows.
constexpr size_t activation_elements(int32_t max_rows, int32_t n) {
  return static_cast<size_t>(padded(max_rows, kGroupRows)) *
         static_cast<size_t>(padded(n, kTileInner));
}

// Of a tile of activations the four elements that mma.m16n8k16 wants of lane `lane`, counted in
// fours.
constexpr uint32_t activation_slot(uint32_t lane) { return lane ^ (lane >> 4 & 1) << 1; }

// Element (row, k) of 16-bit activations with n inputs.
constexpr size_t activation_offset(int32_t row, int32_t k, int32_t n) {
  const int32_t inner = k % kTileInner;
  const int32_t lane = row % kTileRows * 4 + inner / 4;
  const size_t group =
      static_cast<size_t>(row / kGroupRows) * static_cast<size_t>(whole_tiles(n, kTileInner)) +
      static_cast<size_t>(k / kTileInner);
  const size_t tile = group * 8 + static_cast<size_t>(row % kGroupRows / kTileRows);
  return tile * 128 + activation_slot(static_cast<uint32_t>(lane)) * 4 +
         static_cast<size_t>(inner % 4);
}

// Elements of a packed [n_out, n_in] matrix.
constexpr size_t weight_elements(int32_t n_out, int32_t n_in) {
  return static_cast<size_t>(padded(n_out, kTileOutputs)) *
         static_cast<size_t>(padded(n_in, kTileInner));
}

// Of a tile of weights the place of inputs 2 pair and 2 pair + 1 of outputs g and g + 8, counted in
// fours of elements.
constexpr uint32_t weight_place(uint32_t g, uint32_t pair) { return g * 8 + (pair ^ (g & 2) * 2); }
// The eight elements that mma.m16n8k16 wants of lane `lane`, counted in eights.
constexpr uint32_t weight_slot(uint32_t lane) { return weight_place(lane / 4, lane % 4 * 2) / 2; }

// Element (row, k), of so many bytes, of a packed matrix with n_in inputs; row: of the packed order
// (weight_row()).
constexpr size_t weight_offset(int32_t row, int32_t k, int32_t n_in, size_t element_bytes) {
  const int32_t in_tile = row % kTileOutputs;
  const int32_t inner = k % kTileInner;
  const uint32_t place =
      weight_place(static_cast<uint32_t>(in_tile % 8), static_cast<uint32_t>(inner / 2));
  const size_t tile =
      static_cast<size_t>(row / kTileOutputs) * static_cast<size_t>(whole_tiles(n_in, kTileInner)) +
      static_cast<size_t>(k / kTileInner);
  const int32_t within =
      element_bytes == 1 ? inner % 2 * 2 + in_tile / 8 : in_tile / 8 * 2 + inner % 2;
  return tile * 256 + place * 4 + static_cast<size_t>(within);
}

// A thread holds outputs g and g + 8 of a tile, so what a fusion combines is put 8 apart.
// kPlain: as in the file. kPairs: gate and up ([2 ffn, n_in], gate first): outputs i and ffn + i.
// kHalves: heads of head_dim: i and i + head_dim / 2 of the same head.
enum class RowOrder : uint8_t { kPlain, kPairs, kHalves };

// Which packed row holds output `out`. span: of kPairs ffn, of kHalves head_dim / 2; a multiple
// of 8, else the order is not to be used.
constexpr int32_t weight_row(int32_t out, RowOrder order, int32_t span) {
  if (order == RowOrder::kPlain) return out;
  const int32_t head = out / (2 * span);
  const int32_t within = out % (2 * span);
  const int32_t upper = within / span;  // 0: gate or first half; 1: up or second half
  const int32_t i = within % span;
  return head * 2 * span + i / 8 * 16 + upper * 8 + i % 8;
}

// Into which pieces a product's inner dimension is cut: slice s reaches from the end of the one
// before (0 for the first) to slice_ends[s]. Each is summed by itself and the slices are folded in
// the tree of runtime/base/numbers/fold_tree.h, so the cut decides a result's bits. num_slices is
// 1, 2, 4 or 8; ends ascend (a slice may be empty) and the last is n_in; in front of 16-bit
// activations the others are multiples of kTileInner.
inline constexpr int32_t kMaxSlices = 8;
struct SliceEnds {
  int32_t num_slices = 0;
  int32_t slice_ends[kMaxSlices] = {};
};

// What is taken where nothing else decides: even slices, each of kMinSliceTiles tiles or more (so
// that a slice's first loads are not all it has), else fewer of them. Depends on n_in alone.
inline constexpr int32_t kMinSliceTiles = 4;
constexpr SliceEnds default_slice_ends(int32_t n_in) {
  const int32_t tiles = whole_tiles(n_in, kTileInner);
  SliceEnds cut = {.num_slices = kMaxSlices};
  while (cut.num_slices > 1 && tiles < cut.num_slices * kMinSliceTiles) cut.num_slices /= 2;
  for (int32_t s = 0; s < cut.num_slices; ++s) {
    cut.slice_ends[s] = tiles * (s + 1) / cut.num_slices * kTileInner;
  }
  cut.slice_ends[cut.num_slices - 1] = n_in;
  return cut;
}

}  // namespace outrider::gpu
