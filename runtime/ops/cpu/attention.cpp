// Attention over paged keys and values. Rows that follow each other in a sequence
// form tiles; a tile of one KV head reads each key and value once for all its queries. Positions
// are cut into chunks at multiples of kPositionChunk; each chunk gives [max, sum, value sums] per
// query, folded in ascending order (the online softmax of Milakov and Gimelshein 2018, tiled as in
// FlashAttention, Dao et al. 2022). With many tiles each is one thread's work; with few, the chunks
// are spread over the threads and folded afterwards in the same order. Which queries share a tile
// and which thread takes it changes no bit, so tiles are taken as threads become free.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/rounded_attention.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

using cpu::kPositionChunk;

// Below this many multiplications one thread is faster than a hand-over.
constexpr int64_t kInlineProducts = 1 << 17;
// Queries of a tile; turning a chunk's keys over costs as much as three queries.
constexpr int64_t kTileQueries = 256;
// Partial states that are kept at a time when chunks are spread over threads.
constexpr int64_t kMaxPartialFloats = int64_t{1} << 21;

// Whole tiles that load the threads less evenly than this are cut.
constexpr double kGoodBalance = 0.85;

// Consecutive rows of one sequence in ascending position, of one KV head.
struct Tile {
  int64_t first_row;
  int64_t num_rows;
  int64_t kv_head;
  int64_t first_chunk;
  int64_t num_chunks;
  int64_t cost;  // scores
};

struct Attention {
  const Queries& queries;
  const KvPages& pages;
  const AttentionRows& rows;
  const cpu::KernelTable& table;
  const cpu::RoundedProducts* rounded;  // null: everything is multiplied in fp32
  float* out;

  int64_t num_rows() const { return static_cast<int64_t>(rows.positions.size()); }
  int64_t group() const { return queries.n_heads / pages.n_kv_heads; }
  int64_t state_size() const { return pages.head_dim + 2; }
  int64_t query_bytes() const {  // gathered
    return rounded != nullptr ? cpu::kInnerChunk * rounded->element_bytes
                              : pages.head_dim * int64_t{sizeof(float)};
  }
  int64_t num_queries(const Tile& tile) const { return tile.num_rows * group(); }
  int64_t tile_rows() const { return std::max<int64_t>(1, kTileQueries / group()); }
  int32_t sequence(int64_t row) const { return rows.sequence_of_row[static_cast<size_t>(row)]; }
  int64_t end(int64_t row) const { return int64_t{rows.positions[static_cast<size_t>(row)]} + 1; }
  int64_t begin(int64_t row) const {
    return queries.window > 0 ? std::max<int64_t>(0, end(row) - queries.window) : 0;
  }
};

bool belongs_to(const Attention& job, const Tile& tile, int64_t row) {
  return tile.num_rows < job.tile_rows() && job.sequence(row) == job.sequence(row - 1) &&
         job.end(row) > job.end(row - 1);
}

// The tiles of KV head 0.
std::vector<Tile> tiles_of_head(const Attention& job) {
  std::vector<Tile> tiles;
  for (int64_t row = 0; row < job.num_rows(); ++row) {
    if (tiles.empty() || !belongs_to(job, tiles.back(), row)) {
      tiles.push_back({.first_row = row,
                       .num_rows = 0,
                       .kv_head = 0,
                       .first_chunk = job.begin(row) / kPositionChunk,
                       .num_chunks = 0,
                       .cost = 0});
    }
    Tile& tile = tiles.back();
    ++tile.num_rows;
    tile.num_chunks = (job.end(row) - 1) / kPositionChunk + 1 - tile.first_chunk;
    tile.cost += (job.end(row) - job.begin(row)) * job.group();
  }
  return tiles;
}

// All tiles, the costly ones first, so that those left at the end are small; the KV heads of a tile
// next to each other.
std::vector<Tile> make_tiles(const Attention& job) {
  std::vector<Tile> of_head = tiles_of_head(job);
  std::stable_sort(
      of_head.begin(), of_head.end(), [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
  std::vector<Tile> tiles;
  for (const Tile& tile : of_head) {
    for (int64_t head = 0; head < job.pages.n_kv_heads; ++head) {
      tiles.push_back(tile);
      tiles.back().kv_head = head;
    }
  }
  return tiles;
}

// One thread's memory, kept between calls.
struct Workspace {
  float* scratch;
  float* running;      // [queries of a tile, head_dim + 2]
  std::byte* queries;  // [queries of a tile], as AttentionTile has them
  explicit Workspace(const Attention& job) {
    static thread_local AlignedBytes memory;
    static thread_local int64_t room = 0;
    const int64_t head_dim = job.pages.head_dim;
    const int64_t num_queries = job.tile_rows() * job.group();
    const int64_t scratch_size = job.rounded != nullptr
                                     ? cpu::rounded_attention_scratch(head_dim)
                                     : cpu::attention_scratch(head_dim, num_queries);
    const int64_t num_floats = scratch_size + num_queries * job.state_size();
    const int64_t needed = num_floats * int64_t{sizeof(float)} + num_queries * job.query_bytes();
    if (needed > room) {
      memory = allocate_bytes(static_cast<size_t>(needed));
      room = needed;
    }
    scratch = reinterpret_cast<float*>(memory.get());
    running = scratch + scratch_size;
    queries = reinterpret_cast<std::byte*>(scratch + num_floats);
  }
};

void gather_queries(const Attention& job, const Tile& tile, std::byte* queries) {
  const int64_t head_dim = job.pages.head_dim;
  for (int64_t i = 0; i < job.num_queries(tile); ++i, queries += job.query_bytes()) {
    const int64_t row = tile.first_row + i / job.group();
    const int64_t head = tile.kv_head * job.group() + i % job.group();
    const float* from = job.queries.data + row * job.queries.stride + head * head_dim;
    if (job.rounded != nullptr) {
      job.rounded->round_row(queries, from, head_dim);
    } else {
      std::copy_n(from, head_dim, reinterpret_cast<float*>(queries));
    }
  }
}

// Rows of the tile, counted from its first, that see positions of a chunk: [begin, end).
struct RowsOfChunk {
  int64_t begin;
  int64_t end;
};
RowsOfChunk rows_of_chunk(const Attention& job, const Tile& tile, int64_t chunk) {
  RowsOfChunk seen{0, tile.num_rows};
  const int64_t first = chunk * kPositionChunk;
  while (seen.begin < seen.end && job.end(tile.first_row + seen.begin) <= first) ++seen.begin;
  while (seen.begin < seen.end &&
         job.begin(tile.first_row + seen.end - 1) >= first + kPositionChunk) {
    --seen.end;
  }
  return seen;
}

// Slots of a chunk and where their vectors lie in keys and values; their scales, where there are
// any.
struct Slots {
  int64_t first;
  int64_t last;
  int64_t offsets[kPositionChunk];
  float key_scales[kPositionChunk];
  float value_scales[kPositionChunk];
};

void locate(const Attention& job, const Tile& tile, int64_t chunk, Slots& slots) {
  const KvPages& pages = job.pages;
  const auto sequence = static_cast<size_t>(job.sequence(tile.first_row));
  const int32_t* blocks = job.rows.block_tables[sequence].data();
  const int64_t begin = chunk * kPositionChunk;
  slots.first = std::max<int64_t>(0, job.begin(tile.first_row) - begin);
  slots.last = std::min(kPositionChunk, job.end(tile.first_row + tile.num_rows - 1) - begin);
  for (int64_t slot = slots.first; slot < slots.last;) {
    const int64_t block = (begin + slot) / pages.block_size;
    const int64_t in_block = (begin + slot) % pages.block_size;
    const int64_t vector = pages.vector_at(blocks[block], tile.kv_head, in_block);
    const int64_t block_end = std::min(slots.last, slot + pages.block_size - in_block);
    if (pages.keys.scales != nullptr) {
      std::copy_n(pages.keys.scales + vector, block_end - slot, slots.key_scales + slot);
      std::copy_n(pages.values.scales + vector, block_end - slot, slots.value_scales + slot);
    }
    int64_t offset = vector * pages.head_dim;
    for (; slot < block_end; ++slot, offset += pages.head_dim) slots.offsets[slot] = offset;
  }
}

// One chunk of a tile. States are [queries of the tile, head_dim + 2]: with `apart` those of this
// chunk alone, else those of all chunks so far.
struct ChunkRun {
  const Tile& tile;
  int64_t chunk;
  const Slots& slots;
  const Slots* next;  // of the chunk that this thread takes next, if known
  float* states;
  bool apart;
};

// The slope of each query of a tile; null without.
const float* slopes_of(const Attention& job, const Tile& tile, int64_t num_queries) {
  if (job.queries.slopes == nullptr) return nullptr;
  static thread_local std::vector<float> slopes;
  slopes.resize(static_cast<size_t>(num_queries));
  for (int64_t query = 0; query < num_queries; ++query) {
    slopes[static_cast<size_t>(query)] =
        job.queries.slopes[tile.kv_head * job.group() + query % job.group()];
  }
  return slopes.data();
}

void run_chunk(const Attention& job, const ChunkRun& run, const Workspace& workspace) {
  const KvPages& pages = job.pages;
  const Tile& tile = run.tile;
  const int64_t group = job.group();
  const int64_t chunk_begin = run.chunk * kPositionChunk;
  const RowsOfChunk seen = rows_of_chunk(job, tile, run.chunk);
  if (seen.begin == seen.end) return;
  static thread_local std::vector<int32_t> bounds;
  const int64_t num_queries = (seen.end - seen.begin) * group;
  bounds.resize(static_cast<size_t>(2 * num_queries));
  for (int64_t query = 0; query < num_queries; ++query) {
    const int64_t row = tile.first_row + seen.begin + query / group;
    int64_t begin = job.begin(row) - chunk_begin;
    if (run.apart) begin = std::max<int64_t>(0, begin);
    // Beyond the chunk the distance does not matter; it must fit.
    const int64_t end = std::min(kPositionChunk, job.end(row) - chunk_begin);
    bounds[static_cast<size_t>(query)] = static_cast<int32_t>(std::max<int64_t>(-1, begin));
    bounds[static_cast<size_t>(num_queries + query)] = static_cast<int32_t>(end);
  }
  cpu::AttentionTile call;
  call.queries = workspace.queries + seen.begin * group * job.query_bytes();
  call.num_queries = num_queries;
  call.head_dim = pages.head_dim;
  call.scale = job.queries.scale;
  call.softcap = job.queries.softcap;
  call.first_position = chunk_begin;
  call.slopes = slopes_of(job, tile, num_queries);
  call.keys = pages.keys.data;
  call.values = pages.values.data;
  call.key_scales = pages.keys.scales != nullptr ? run.slots.key_scales : nullptr;
  call.value_scales = run.slots.value_scales;
  call.first = std::max<int64_t>(0, bounds[0]);
  call.last = bounds.back();
  call.begins = bounds.data();
  call.ends = bounds.data() + num_queries;
  call.scratch = workspace.scratch;
  call.running = run.states + seen.begin * group * job.state_size();
  call.offsets = run.slots.offsets;
  call.keys_asked_for = !run.apart && run.chunk > tile.first_chunk;
  if (run.next != nullptr) {
    call.next_offsets = run.next->offsets;
    call.num_next = run.next->last;
  }
  if (job.rounded != nullptr) return cpu::rounded_attention_tile(job.table, *job.rounded, call);
  job.table.attention_tile[static_cast<size_t>(pages.type)](call);
}

// A sink is one more chunk, after all others: its own score, whose value is zero.
void merge_sink(const Attention& job, int64_t head, float* running) {
  static thread_local std::vector<float> state;
  state.assign(static_cast<size_t>(job.state_size()), 0.0f);
  state[0] = job.queries.sinks[head];
  state[1] = 1.0f;
  job.table.attention_merge(running, state.data(), job.pages.head_dim);
}

void finish(const Attention& job, const Tile& tile, float* running) {
  const int64_t head_dim = job.pages.head_dim;
  for (int64_t query = 0; query < job.num_queries(tile); ++query) {
    const int64_t row = tile.first_row + query / job.group();
    const int64_t head = tile.kv_head * job.group() + query % job.group();
    float* const state = running + query * job.state_size();
    if (job.queries.sinks != nullptr) merge_sink(job, head, state);
    float* const out = job.out + (row * job.queries.n_heads + head) * head_dim;
    job.table.attention_finish(out, state, head_dim);
  }
}

void run_tile(const Attention& job, const Tile& tile) {
  const Workspace workspace(job);
  gather_queries(job, tile, workspace.queries);
  Slots slots[2];  // of this chunk and the next, in turns
  locate(job, tile, tile.first_chunk, slots[0]);
  for (int64_t i = 0; i < tile.num_chunks; ++i) {
    const int64_t chunk = tile.first_chunk + i;
    Slots* next = i + 1 < tile.num_chunks ? &slots[(i + 1) % 2] : nullptr;
    if (next != nullptr) locate(job, tile, chunk + 1, *next);
    run_chunk(job, {tile, chunk, slots[i % 2], next, workspace.running, false}, workspace);
  }
  finish(job, tile, workspace.running);
}

// Calls body(i) once for each i below count, whichever thread is free.
template <typename Body>
void share_out(Context& ctx, int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  ctx.threads().run([&](int, int) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
  });
}

// How evenly whole tiles, costly ones first, load the threads: the mean load over the largest.
double balance(const std::vector<Tile>& tiles, int num_threads) {
  std::vector<int64_t> loads(static_cast<size_t>(num_threads), 0);
  for (const Tile& tile : tiles) *std::min_element(loads.begin(), loads.end()) += tile.cost;
  const auto total = static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0}));
  return total / num_threads / static_cast<double>(*std::max_element(loads.begin(), loads.end()));
}

struct ChunkOfTile {
  size_t tile;
  int64_t chunk;
};

// Folds the chunks' states, in ascending order, into the tiles' running ones. tile_size: floats of
// a tile's states.
void fold_chunks(const Attention& job,
                 const std::vector<Tile>& tiles,
                 std::span<const ChunkOfTile> work,
                 size_t tile_size,
                 const float* partials,
                 float* running) {
  const int64_t size = job.state_size();
  for (size_t i = 0; i < work.size(); ++i) {
    const Tile& tile = tiles[work[i].tile];
    const RowsOfChunk seen = rows_of_chunk(job, tile, work[i].chunk);
    const float* from = partials + i * tile_size;
    float* to = running + work[i].tile * tile_size;
    for (int64_t query = seen.begin * job.group(); query < seen.end * job.group(); ++query) {
      const int64_t row = tile.first_row + query / job.group();
      if (job.begin(row) >= work[i].chunk * kPositionChunk) {
        std::copy_n(from + query * size, size, to + query * size);
      } else {
        job.table.attention_merge(to + query * size, from + query * size, job.pages.head_dim);
      }
    }
  }
}

void run_chunks(Context& ctx, const Attention& job, const std::vector<Tile>& tiles) {
  std::vector<ChunkOfTile> work;
  for (size_t i = 0; i < tiles.size(); ++i) {
    for (int64_t chunk = 0; chunk < tiles[i].num_chunks; ++chunk) {
      work.push_back({i, tiles[i].first_chunk + chunk});
    }
  }
  int64_t most_queries = 1;  // decode's tiles have one row
  for (const Tile& tile : tiles) most_queries = std::max(most_queries, job.num_queries(tile));
  const auto state_size = static_cast<size_t>(most_queries * job.state_size());
  const size_t at_once = std::clamp<size_t>(
      static_cast<size_t>(kMaxPartialFloats) / state_size, 1, std::max<size_t>(1, work.size()));
  std::vector<float> partials(at_once * state_size);
  std::vector<float> running(tiles.size() * state_size);
  for (size_t done = 0; done < work.size(); done += at_once) {
    const std::span<const ChunkOfTile> part =
        std::span(work).subspan(done, std::min(at_once, work.size() - done));
    share_out(ctx, std::ssize(part), [&](int64_t i) {
      const ChunkOfTile& item = part[static_cast<size_t>(i)];
      const Workspace workspace(job);
      gather_queries(job, tiles[item.tile], workspace.queries);
      float* states = partials.data() + static_cast<size_t>(i) * state_size;
      Slots slots;
      locate(job, tiles[item.tile], item.chunk, slots);
      run_chunk(job, {tiles[item.tile], item.chunk, slots, nullptr, states, true}, workspace);
    });
    fold_chunks(job, tiles, part, state_size, partials.data(), running.data());
  }
  for (size_t i = 0; i < tiles.size(); ++i) {
    finish(job, tiles[i], running.data() + i * state_size);
  }
}

}  // namespace

void attention(Context& ctx,
               float* out,
               const Queries& queries,
               const KvPages& pages,
               const AttentionRows& rows) {
  const bool rounds = pages.type != KvType::kF32 && ctx.activations() == Activations::kBF16 &&
                      cpu::can_round_attention(pages.head_dim);
  const cpu::RoundedProducts* rounded = rounds ? &cpu::rounded_products_of(ctx) : nullptr;
  const Attention job{queries, pages, rows, cpu::kernels_of(ctx.isa()), rounded, out};
  if (job.num_rows() == 0) return;
  OUTRIDER_CHECK(queries.n_heads % pages.n_kv_heads == 0);
  const std::vector<Tile> tiles = make_tiles(job);
  const int num_threads = ctx.num_threads();
  int64_t num_scores = 0;
  for (const Tile& tile : tiles) num_scores += tile.cost;
  if (num_threads == 1 || num_scores * pages.head_dim < kInlineProducts) {
    for (const Tile& tile : tiles) run_tile(job, tile);
  } else if (balance(tiles, num_threads) < kGoodBalance) {
    run_chunks(ctx, job, tiles);
  } else {
    share_out(
        ctx, std::ssize(tiles), [&](int64_t i) { run_tile(job, tiles[static_cast<size_t>(i)]); });
  }
}

}  // namespace outrider::ops
