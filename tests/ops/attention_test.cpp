// Paged attention against double precision; its bits across batches, threads and instruction sets;
// the KV writes.
#include <numeric>

#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

struct Case {
  int64_t n_heads;
  int64_t n_kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t length;
  int64_t window;
};
// Chunks of 128 positions: below, at and beyond; odd head_dims and blocks; groups of 1 to 8;
// windows.
constexpr Case kCases[] = {
    {2, 2, 8, 4, 5, 0},
    {4, 2, 16, 16, 128, 0},
    {8, 1, 64, 16, 129, 0},
    {6, 2, 20, 5, 300, 0},
    {7, 1, 33, 16, 260, 0},
    {4, 4, 48, 32, 400, 1},
    {6, 3, 64, 16, 400, 7},
    {8, 2, 32, 16, 400, 200},
};

// A set of sequences of given lengths whose blocks lie shuffled in memory; unused slots hold NaN.
struct Cache {
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::span<const int32_t>> spans;
  std::vector<std::vector<float>>
      key_rows;  // [sequence][length * n_kv_heads * head_dim], for the reference
  std::vector<std::vector<float>> value_rows;
  KvPages pages;

  Cache(const Case& c, const std::vector<int64_t>& lengths, uint32_t seed) {
    int64_t blocks = 1;
    for (const int64_t length : lengths) blocks += (length + c.block_size - 1) / c.block_size;
    const size_t size = static_cast<size_t>(blocks * c.n_kv_heads * c.block_size * c.head_dim);
    keys.assign(size, kPoison);
    values.assign(size, kPoison);
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    pages = {keys.data(), values.data(), blocks, c.n_kv_heads, c.block_size, c.head_dim};
    size_t next = 0;
    for (const int64_t length : lengths) {
      const size_t need = static_cast<size_t>((length + c.block_size - 1) / c.block_size);
      tables.emplace_back(order.begin() + static_cast<long>(next),
                          order.begin() + static_cast<long>(next + need));
      next += need;
    }
    for (const auto& table : tables) spans.emplace_back(table);
    Context ctx(2);
    for (size_t s = 0; s < lengths.size(); ++s)
      fill(ctx, c, s, lengths[s], seed + 10 * static_cast<uint32_t>(s));
  }

  void fill(Context& ctx, const Case& c, size_t sequence, int64_t length, uint32_t seed) {
    const int64_t width = c.n_kv_heads * c.head_dim;
    key_rows.push_back(random_floats(static_cast<size_t>(length * width), seed + 1));
    value_rows.push_back(random_floats(static_cast<size_t>(length * width), seed + 2));
    std::vector<int32_t> positions(static_cast<size_t>(length));
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<int32_t> owner(static_cast<size_t>(length), static_cast<int32_t>(sequence));
    kv_write(ctx,
             pages,
             key_rows.back().data(),
             value_rows.back().data(),
             width,
             {positions, owner, spans});
  }
};

float scale_of(const Case& c) { return 3.0f / std::sqrt(static_cast<float>(c.head_dim)); }

std::vector<double> reference_row(
    const Case& c, const Cache& cache, int32_t sequence, int32_t position, const float* q) {
  const std::vector<float>& k = cache.key_rows[static_cast<size_t>(sequence)];
  const std::vector<float>& v = cache.value_rows[static_cast<size_t>(sequence)];
  const int64_t begin = c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
  std::vector<double> out(static_cast<size_t>(c.n_heads * c.head_dim), 0.0);
  for (int64_t h = 0; h < c.n_heads; ++h) {
    const int64_t kv_head = h / (c.n_heads / c.n_kv_heads);
    const auto at = [&](int64_t t, int64_t d) {
      return static_cast<size_t>((t * c.n_kv_heads + kv_head) * c.head_dim + d);
    };
    double total = 0;
    for (int64_t t = begin; t <= position; ++t) {
      double score = 0;
      for (int64_t d = 0; d < c.head_dim; ++d) score += double{q[h * c.head_dim + d]} * k[at(t, d)];
      const double weight = std::exp(score * scale_of(c));
      total += weight;
      for (int64_t d = 0; d < c.head_dim; ++d) {
        out[static_cast<size_t>(h * c.head_dim + d)] += weight * v[at(t, d)];
      }
    }
    for (int64_t d = 0; d < c.head_dim; ++d) out[static_cast<size_t>(h * c.head_dim + d)] /= total;
  }
  return out;
}

std::vector<float> run_attention(Context& ctx,
                                 const Case& c,
                                 const Cache& cache,
                                 const float* q,
                                 int64_t stride,
                                 const std::vector<int32_t>& positions,
                                 const std::vector<int32_t>& owners) {
  std::vector<float> out(positions.size() * static_cast<size_t>(c.n_heads * c.head_dim), kPoison);
  attention(ctx,
            out.data(),
            {q, stride, c.n_heads, scale_of(c), c.window},
            cache.pages,
            {positions, owners, cache.spans});
  return out;
}

TEST(Attention, EqualsDoublePrecisionAndIsTheSameOnEveryIsaThreadAndBatch) {
  for (const Case& c : kCases) {
    const Cache cache(c, {c.length, 3, c.length / 2 + 1}, 20);
    std::vector<int32_t> positions;
    std::vector<int32_t> owners;
    for (int32_t p = 0; p < c.length; p += p < c.length - 8 ? 17 : 1) {
      positions.push_back(p);
      owners.push_back(0);
    }
    for (const int32_t p : {0, 2}) {
      positions.push_back(p);
      owners.push_back(1);
    }
    positions.push_back(static_cast<int32_t>(c.length / 2));
    owners.push_back(2);
    const int64_t stride = c.n_heads * c.head_dim + 3;
    const std::vector<float> q = random_floats(positions.size() * static_cast<size_t>(stride), 21);
    const size_t width = static_cast<size_t>(c.n_heads * c.head_dim);
    Context scalar(1, Isa::kScalar);
    const std::vector<float> expected =
        run_attention(scalar, c, cache, q.data(), stride, positions, owners);
    for (size_t r = 0; r < positions.size(); ++r) {
      const std::vector<float> row(expected.begin() + static_cast<long>(r * width),
                                   expected.begin() + static_cast<long>((r + 1) * width));
      const auto wanted = reference_row(
          c, cache, owners[r], positions[r], q.data() + r * static_cast<size_t>(stride));
      EXPECT_LE(error_of(row, wanted), 5e-6)
          << "head_dim " << c.head_dim << " position " << positions[r];
    }
    for (const Isa isa : all_isas()) {
      for (const int threads : {1, 2, 3}) {
        Context ctx(threads, isa);
        EXPECT_TRUE(
            same_bits(run_attention(ctx, c, cache, q.data(), stride, positions, owners), expected))
            << isa_name(isa) << " threads " << threads << " head_dim " << c.head_dim;
        for (size_t r = 0; r < positions.size(); ++r) {
          const auto row = run_attention(ctx,
                                         c,
                                         cache,
                                         q.data() + r * static_cast<size_t>(stride),
                                         stride,
                                         {positions[r]},
                                         {owners[r]});
          ASSERT_TRUE(same_bits(row.data(), expected.data() + r * width, width))
              << isa_name(isa) << " threads " << threads << " row " << r;
        }
      }
    }
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  const Case c{1, 1, 16, 16, 200, 0};
  Cache cache(c, {c.length}, 30);
  for (float& key : cache.keys) key *= 1e4f;
  std::vector<float> q(16, 1e4f);
  Context ctx(1);
  for (const float value : run_attention(ctx, c, cache, q.data(), 16, {199}, {0})) {
    EXPECT_TRUE(std::isfinite(value));
    EXPECT_LE(std::abs(value), 1.0f);
  }
}

TEST(Attention, NanInOneSequenceStaysThere) {
  const Case c{2, 1, 16, 16, 300, 0};
  Cache cache(c, {c.length, c.length}, 31);
  cache.keys[static_cast<size_t>(cache.tables[0][5]) * 16 * 16 + 3] =
      kPoison;  // position 80 of sequence 0
  const std::vector<float> q = random_floats(3 * 32, 32);
  for (const Isa isa : all_isas()) {
    Context ctx(2, isa);
    const auto out = run_attention(ctx, c, cache, q.data(), 32, {79, 299, 299}, {0, 0, 1});
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 32 == 1) << i;
  }
}

TEST(Attention, NoRowsIsNothing) {
  Context ctx(2);
  const Case c{2, 1, 16, 16, 20, 0};
  const Cache cache(c, {c.length}, 33);
  EXPECT_TRUE(run_attention(ctx, c, cache, nullptr, 32, {}, {}).empty());
}

}  // namespace
}  // namespace outrider::ops
