// The warp's matrix operations of the emulated device, by the fragment layouts that the PTX manual
// gives for mma.m16n8k16 and ldmatrix.
#include <cstring>

#include "tests/emulated/platform_emulated.h"
#include "runtime/ops/half.h"

namespace outrider::gpu::emulated {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 8;
constexpr int kInner = 16;

uint16_t half_of(uint32_t pair, int which) { return static_cast<uint16_t>(pair >> (16 * which)); }

template <float (*kWiden)(uint16_t)>
void multiply_lanes(void* const (&lanes)[32]) {
  float a[kRows][kInner];
  float b[kInner][kColumns];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const Multiply*>(lanes[lane]);
    const int group = lane / 4;
    const int pair = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      a[group][pair + i] = kWiden(half_of(mine.a->x, i));
      a[group + 8][pair + i] = kWiden(half_of(mine.a->y, i));
      a[group][pair + 8 + i] = kWiden(half_of(mine.a->z, i));
      a[group + 8][pair + 8 + i] = kWiden(half_of(mine.a->w, i));
      b[pair + i][group] = kWiden(half_of(mine.b->x, i));
      b[pair + 8 + i][group] = kWiden(half_of(mine.b->y, i));
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* d = static_cast<const Multiply*>(lanes[lane])->d;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8;
      const int column = lane % 4 * 2 + i % 2;
      double sum = static_cast<double>(d[i]);
      for (int k = 0; k < kInner; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      d[i] = static_cast<float>(sum);
    }
  }
}

void load(void* const (&lanes)[32], bool transposed) {
  uint16_t tiles[4][8][8];
  for (int lane = 0; lane < 32; ++lane) {
    std::memcpy(tiles[lane / 8][lane % 8], static_cast<const TileLoad*>(lanes[lane])->row, 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t out[4];
    for (int t = 0; t < 4; ++t) {
      const int at = lane / 4;
      const int pair = lane % 4 * 2;
      const uint16_t low = transposed ? tiles[t][pair][at] : tiles[t][at][pair];
      const uint16_t high = transposed ? tiles[t][pair + 1][at] : tiles[t][at][pair + 1];
      out[t] = uint32_t{low} | uint32_t{high} << 16;
    }
    static_cast<TileLoad*>(lanes[lane])->result = {out[0], out[1], out[2], out[3]};
  }
}

}  // namespace

void multiply_lanes_bf16(void* const (&lanes)[32]) { multiply_lanes<ops::bf16_to_float>(lanes); }
void multiply_lanes_f16(void* const (&lanes)[32]) { multiply_lanes<ops::f16_to_float>(lanes); }
void load_tiles_of_lanes(void* const (&lanes)[32]) { load(lanes, false); }
void load_transposed_tiles_of_lanes(void* const (&lanes)[32]) { load(lanes, true); }

}  // namespace outrider::gpu::emulated
