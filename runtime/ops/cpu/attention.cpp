// Attention over paged keys and values, and writing them. A row's positions are cut into chunks at
// multiples of kPositionChunk; each chunk gives [max, sum, value sums] per head, folded in
// ascending order (the online softmax of Milakov and Gimelshein 2018). With many (row, KV head)
// pairs each is one thread's work; with few, the chunks are spread over the threads and folded
// afterwards in the same order, so the bits are the same either way.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/thread_pool.h"
#include "runtime/ops/ops.h"
#include "runtime/ops/profile.h"

namespace outrider::ops {
namespace {

using cpu::kPositionChunk;

// Below this many multiplications one thread is faster than a hand-over.
constexpr int64_t kInlineProducts = 1 << 17;

struct Attention {
  const Queries& queries;
  const KvPages& pages;
  const AttentionRows& rows;
  const cpu::KernelTable& table;
  float* out;

  int64_t num_rows() const { return static_cast<int64_t>(rows.positions.size()); }
  int64_t group() const { return queries.n_heads / pages.n_kv_heads; }
  int64_t partial_size() const { return group() * (pages.head_dim + 2); }
  int64_t end(int64_t row) const { return int64_t{rows.positions[static_cast<size_t>(row)]} + 1; }
  int64_t begin(int64_t row) const {
    return queries.window > 0 ? std::max<int64_t>(0, end(row) - queries.window) : 0;
  }
  int64_t first_chunk(int64_t row) const { return begin(row) / kPositionChunk; }
  int64_t num_chunks(int64_t row) const {
    return (end(row) - 1) / kPositionChunk - first_chunk(row) + 1;
  }
};

// One (row, KV head); index counts KV heads first so that neighbours share keys and values in the
// cache.
struct Pair {
  int64_t row;
  int64_t kv_head;
};
Pair pair_at(const Attention& job, int64_t index) {
  return {index % job.num_rows(), index / job.num_rows()};
}

void run_chunk(
    const Attention& job, const Pair& pair, int64_t chunk, float* scores, float* partials) {
  const KvPages& pages = job.pages;
  const int64_t chunk_begin = chunk * kPositionChunk;
  const int64_t begin = std::max(chunk_begin, job.begin(pair.row));
  const int64_t end = std::min(chunk_begin + kPositionChunk, job.end(pair.row));
  const size_t sequence =
      static_cast<size_t>(job.rows.sequence_of_row[static_cast<size_t>(pair.row)]);
  const std::span<const int32_t> blocks = job.rows.block_tables[sequence];
  int64_t offsets[kPositionChunk];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t block = blocks[static_cast<size_t>(t / pages.block_size)];
    offsets[t - begin] =
        ((block * pages.n_kv_heads + pair.kv_head) * pages.block_size + t % pages.block_size) *
        pages.head_dim;
  }
  cpu::AttentionPiece piece;
  piece.group = job.group();
  piece.queries = job.queries.data + pair.row * job.queries.stride +
                  pair.kv_head * piece.group * pages.head_dim;
  piece.head_dim = pages.head_dim;
  piece.scale = job.queries.scale;
  piece.keys = pages.keys;
  piece.values = pages.values;
  piece.offsets = offsets;
  piece.first = begin - chunk_begin;
  piece.count = end - begin;
  piece.scores = scores;
  piece.partials = partials;
  job.table.attention_piece(piece);
}

void merge(const Attention& job, float* running, const float* partials) {
  const int64_t size = job.pages.head_dim + 2;
  for (int64_t head = 0; head < job.group(); ++head) {
    job.table.attention_merge(running + head * size, partials + head * size, job.pages.head_dim);
  }
}

void finish(const Attention& job, const Pair& pair, const float* running) {
  const int64_t head_dim = job.pages.head_dim;
  for (int64_t head = 0; head < job.group(); ++head) {
    const int64_t query_head = pair.kv_head * job.group() + head;
    job.table.attention_finish(job.out + (pair.row * job.queries.n_heads + query_head) * head_dim,
                               running + head * (head_dim + 2),
                               head_dim);
  }
}

// Room for the scores of one chunk and two partials.
std::vector<float> scratch_for(const Attention& job) {
  return std::vector<float>(
      static_cast<size_t>(job.group() * kPositionChunk + 2 * job.partial_size()));
}

void run_pairs(const Attention& job, int64_t begin, int64_t end) {
  std::vector<float> scratch = scratch_for(job);
  float* scores = scratch.data();
  float* running = scores + job.group() * kPositionChunk;
  float* partials = running + job.partial_size();
  for (int64_t index = begin; index < end; ++index) {
    const Pair pair = pair_at(job, index);
    const int64_t first = job.first_chunk(pair.row);
    run_chunk(job, pair, first, scores, running);
    for (int64_t chunk = first + 1; chunk < first + job.num_chunks(pair.row); ++chunk) {
      run_chunk(job, pair, chunk, scores, partials);
      merge(job, running, partials);
    }
    finish(job, pair, running);
  }
}

// Thread t of num takes the pairs whose share of all chunks begins in its part; long rows weigh
// more.
void run_pairs_balanced(Context& ctx, const Attention& job, int64_t num_pairs) {
  int64_t chunks_of_head = 0;
  for (int64_t row = 0; row < job.num_rows(); ++row) chunks_of_head += job.num_chunks(row);
  const int64_t total = chunks_of_head * job.pages.n_kv_heads;
  ctx.threads().run([&](int thread, int num) {
    const int64_t from = total * thread / num;
    const int64_t to = total * (thread + 1) / num;
    int64_t done = 0;
    int64_t begin = num_pairs;
    int64_t end = 0;
    for (int64_t index = 0; index < num_pairs; ++index) {
      if (done >= from && done < to) {
        begin = std::min(begin, index);
        end = index + 1;
      }
      done += job.num_chunks(pair_at(job, index).row);
    }
    if (begin < end) run_pairs(job, begin, end);
  });
}

struct ChunkOfPair {
  Pair pair;
  int64_t chunk;
};

void run_chunks(Context& ctx, const Attention& job, int64_t num_pairs) {
  std::vector<ChunkOfPair> work;
  for (int64_t index = 0; index < num_pairs; ++index) {
    const Pair pair = pair_at(job, index);
    for (int64_t c = 0; c < job.num_chunks(pair.row); ++c) {
      work.push_back({pair, job.first_chunk(pair.row) + c});
    }
  }
  std::vector<float> partials(work.size() * static_cast<size_t>(job.partial_size()));
  const auto partial_at = [&](int64_t i) { return partials.data() + i * job.partial_size(); };
  ctx.threads().for_range(
      static_cast<int64_t>(work.size()), false, [&](int64_t begin, int64_t end) {
        std::vector<float> scratch = scratch_for(job);
        for (int64_t i = begin; i < end; ++i) {
          const ChunkOfPair& item = work[static_cast<size_t>(i)];
          run_chunk(job, item.pair, item.chunk, scratch.data(), partial_at(i));
        }
      });
  int64_t next = 0;
  for (int64_t index = 0; index < num_pairs; ++index) {
    const Pair pair = pair_at(job, index);
    float* running = partial_at(next++);
    for (int64_t c = 1; c < job.num_chunks(pair.row); ++c) merge(job, running, partial_at(next++));
    finish(job, pair, running);
  }
}

}  // namespace

void kv_write(Context& ctx,
              const KvPages& pages,
              const float* keys,
              const float* values,
              int64_t stride,
              const AttentionRows& rows) {
  const OpTimer timer(ctx, OpKind::kKvWrite);
  const int64_t num_rows = static_cast<int64_t>(rows.positions.size());
  const size_t head_bytes = static_cast<size_t>(pages.head_dim) * sizeof(float);
  const bool small = num_rows * pages.n_kv_heads * pages.head_dim < kInlineProducts;
  ctx.threads().for_range(num_rows, small, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t position = rows.positions[static_cast<size_t>(r)];
      const size_t sequence = static_cast<size_t>(rows.sequence_of_row[static_cast<size_t>(r)]);
      const int64_t block =
          rows.block_tables[sequence][static_cast<size_t>(position / pages.block_size)];
      for (int64_t h = 0; h < pages.n_kv_heads; ++h) {
        const int64_t slot =
            (block * pages.n_kv_heads + h) * pages.block_size + position % pages.block_size;
        const int64_t from = r * stride + h * pages.head_dim;
        std::memcpy(pages.keys + slot * pages.head_dim, keys + from, head_bytes);
        std::memcpy(pages.values + slot * pages.head_dim, values + from, head_bytes);
      }
    }
  });
}

void attention(Context& ctx,
               float* out,
               const Queries& queries,
               const KvPages& pages,
               const AttentionRows& rows) {
  const OpTimer timer(ctx, OpKind::kAttention);
  const Attention job{queries, pages, rows, cpu::kernels_of(ctx.isa()), out};
  const int64_t num_pairs = job.num_rows() * pages.n_kv_heads;
  if (num_pairs == 0) return;
  OUTRIDER_CHECK(queries.n_heads % pages.n_kv_heads == 0);
  int64_t num_positions = 0;
  for (int64_t row = 0; row < job.num_rows(); ++row) num_positions += job.end(row) - job.begin(row);
  const int num_threads = ctx.num_threads();
  if (num_threads == 1 || num_positions * queries.n_heads * pages.head_dim < kInlineProducts) {
    run_pairs(job, 0, num_pairs);
  } else if (num_pairs < 8 * int64_t{num_threads}) {
    run_chunks(ctx, job, num_pairs);
  } else {
    run_pairs_balanced(ctx, job, num_pairs);
  }
}

}  // namespace outrider::ops
