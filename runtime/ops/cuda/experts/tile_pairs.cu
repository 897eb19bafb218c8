// Pairs of rows and experts in tiles of one expert each, experts ascending and the rows of each
// too. One block; a warp for every 16th expert goes through all pairs, 32 at a time.
#include "runtime/base/error.h"
#include "runtime/ops/cuda/experts/piece.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr int32_t kWarps = 16;
constexpr uint32_t kThreads = 32 * kWarps;

// Calls each(pair, how many of the expert's come before it) for every pair of the expert, on its
// lane. Returns their number.
template <typename Each>
OUTRIDER_DEVICE int32_t
for_pairs(const int32_t* ids, int32_t num_pairs, int32_t e, const Each& each) {
  const auto lane = static_cast<int32_t>(lane_id());
  int32_t before = 0;
  for (int32_t first = 0; first < num_pairs; first += 32) {
    const int32_t pair = first + lane;
    const bool is_mine = pair < num_pairs && ids[pair] == e;
    const uint32_t votes = ballot(is_mine);
    if (is_mine) each(pair, before + count_bits(votes & ((1u << lane) - 1)));
    before += count_bits(votes);
  }
  return before;
}

// In all lanes.
OUTRIDER_DEVICE int32_t tiles_before(const int32_t* counts, int32_t e, int32_t tile_rows) {
  int32_t sum = 0;
  for (auto i = static_cast<int32_t>(lane_id()); i < e; i += 32) {
    sum += whole_tiles(counts[i], tile_rows);
  }
  for (uint32_t mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  return sum;
}

OUTRIDER_DEVICE void store_tiles(const RoutedRows& to, int32_t e, int32_t first, int32_t count) {
  const int32_t num_tiles = whole_tiles(count, to.tile_rows);
  for (auto t = static_cast<int32_t>(lane_id()); t < num_tiles; t += 32) {
    const int32_t left = count - t * to.tile_rows;
    to.tiles[first + t] = {e, left < to.tile_rows ? left : to.tile_rows};
  }
}

OUTRIDER_KERNEL(kThreads) void tile_all_pairs(RouteArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const RoutedRows& to = args.to;
  const int32_t num_pairs = rows_of_piece(to, args.step) * to.per_row;
  auto* const counts = shared_memory<int32_t>();  // [experts]
  int32_t* const ids = counts + to.num_experts;   // [pairs]
  for (auto i = static_cast<int32_t>(thread_id()); i < num_pairs;
       i += static_cast<int32_t>(kThreads)) {
    ids[i] = to.ids[i];
  }
  sync_block();
  const auto warp = static_cast<int32_t>(warp_id());
  for (int32_t e = warp; e < to.num_experts; e += kWarps) {
    const int32_t count = for_pairs(ids, num_pairs, e, [](int32_t, int32_t) {});
    if (lane_id() == 0) counts[e] = count;
  }
  sync_block();
  if (warp == 0) {
    const int32_t num_tiles = tiles_before(counts, to.num_experts, to.tile_rows);
    if (lane_id() == 0) *to.num_tiles = num_tiles;
  }
  for (int32_t e = warp; e < to.num_experts; e += kWarps) {
    if (counts[e] == 0) continue;
    const int32_t first = tiles_before(counts, e, to.tile_rows);
    store_tiles(to, e, first, counts[e]);
    int32_t* const slots = to.pairs + first * to.tile_rows;
    for_pairs(ids, num_pairs, e, [=](int32_t pair, int32_t place) { slots[place] = pair; });
  }
}

}  // namespace

void tile_pairs(Stream& stream, const RouteArgs& args) {
  const auto count = static_cast<size_t>(args.to.num_experts) +
                     static_cast<size_t>(args.to.max_rows) * static_cast<size_t>(args.to.per_row);
  launch(
      stream,
      tile_all_pairs,
      {.grid = {}, .threads = kThreads, .shared_bytes = count * sizeof(int32_t), .overlaps = true},
      args);
}

void route_rows(Stream& stream, const RouteArgs& args) {
  OUTRIDER_CHECK(args.choice.count == args.to.num_experts);
  OUTRIDER_CHECK(args.choice.per_row == args.to.per_row);
  OUTRIDER_CHECK(args.choice.count <= ops::kMaxExperts && args.choice.count <= args.num_logits);
  if (args.to.max_rows == 0) return;
  make_router_logits(stream, args);
  choose_experts(stream, args);
  tile_pairs(stream, args);
}

}  // namespace outrider::gpu
