// How many threads a kernel runs in: blocks of `threads`, in a grid of up to three dimensions. And
// plain values that both sides of platform.h know.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::gpu {

struct Grid {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

struct LaunchShape {
  Grid grid;
  uint32_t threads = 32;    // of a block; a multiple of 32, at most 1024
  size_t shared_bytes = 0;  // of a block, what shared_memory() gives
  // The launch may begin before the one before it has ended; the kernel calls
  // wait_for_predecessor() before it reads what others wrote.
  bool overlaps = false;
  // Its blocks wait for those of other launches: all of them run at once, so there are few.
  bool blocks_wait = false;
};

// Of so many blocks for each row.
constexpr LaunchShape over_rows(int32_t max_rows, int32_t blocks_per_row, uint32_t threads) {
  return {.grid = {static_cast<uint32_t>(max_rows), static_cast<uint32_t>(blocks_per_row)},
          .threads = threads,
          .overlaps = true};
}

struct alignas(16) Vector4 {  // 16 bytes that move at once
  uint32_t x;
  uint32_t y;
  uint32_t z;
  uint32_t w;
};
struct alignas(8) Vector2 {
  uint32_t x;
  uint32_t y;
};

// Tiles that lie one after the other, each a row of units of up to 512 bytes (256 numbers, as a
// tensor map has at most); and what one copy brings, part_units of each of part_tiles.
struct PackedTiles {
  const void* data = nullptr;
  uint32_t unit_bytes = 0;
  uint32_t num_units = 0;  // of a tile
  uint32_t num_tiles = 0;
  uint32_t part_units = 0;
  uint32_t part_tiles = 0;
};

}  // namespace outrider::gpu
