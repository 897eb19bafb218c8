// Paged attention against double precision over keys and values as their pages keep them; its bits
// across batches, threads and instruction sets.
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
  bool has_sinks = false;
  KvType type = KvType::kF32;
  Activations activations = Activations::kF32;
};

// How keys and values are kept and multiplied.
struct Kept {
  const char* name;
  KvType type;
  Activations activations = Activations::kF32;
};
constexpr Kept kKept[] = {{"float32", KvType::kF32},
                          {"bfloat16", KvType::kBF16},
                          {"bfloat16_rounded", KvType::kBF16, Activations::kBF16},
                          {"int8", KvType::kInt8},
                          {"int8_rounded", KvType::kInt8, Activations::kBF16}};
Case kept_as(Case c, const Kept& kept) {
  c.type = kept.type;
  c.activations = kept.activations;
  return c;
}
// Other heads are widened.
bool rounds(const Case& c) {
  return c.type != KvType::kF32 && c.activations == Activations::kBF16 && c.head_dim % 32 == 0;
}

// What the numbers of vectors of head_dim are worth once they are kept in a type.
std::vector<float> as_kept(std::vector<float> x, KvType type, int64_t head_dim) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (type == KvType::kBF16) x[i] = bf16_to_float(float_to_bf16(x[i]));
  }
  if (type != KvType::kInt8) return x;
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(head_dim)) {
    const std::span<float> vector = std::span(x).subspan(begin, static_cast<size_t>(head_dim));
    float largest = 0;
    for (const float value : vector) largest = std::max(largest, std::abs(value));
    for (float& value : vector) {
      value = std::nearbyint(value * (127.0f / largest)) * (largest / 127.0f);
    }
  }
  return x;
}

// Chunks of 128 positions: below, at and beyond; odd head_dims and blocks; groups of 1 to 8;
// windows; sinks.
constexpr Case kCases[] = {
    {2, 2, 8, 4, 5, 0},
    {4, 2, 16, 16, 128, 0},
    {8, 1, 64, 16, 129, 0},
    {6, 2, 20, 5, 300, 0},
    {7, 1, 33, 16, 260, 0},
    {4, 4, 48, 32, 400, 1},
    {6, 3, 64, 16, 400, 7},
    {8, 2, 32, 16, 400, 200},
    {2, 1, 96, 16, 400, 0},
    {2, 2, 256, 16, 140, 0},
    {4, 2, 20, 5, 300, 0, true},
    {6, 2, 64, 16, 400, 7, true},
};

// A set of sequences of given lengths whose blocks lie shuffled in memory; unused slots hold NaN.
struct Cache {
  std::vector<float> keys;  // room for floats; narrower types take less
  std::vector<float> values;
  std::vector<float> scales;
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::span<const int32_t>> spans;
  std::vector<std::vector<float>>
      key_rows;  // [sequence][length * n_kv_heads * head_dim] as kept, for the reference
  std::vector<std::vector<float>> value_rows;
  KvPages pages;

  Cache(const Case& c, const std::vector<int64_t>& lengths, uint32_t seed) {
    int64_t blocks = 1;
    for (const int64_t length : lengths) blocks += (length + c.block_size - 1) / c.block_size;
    const size_t size = static_cast<size_t>(blocks * c.n_kv_heads * c.block_size * c.head_dim);
    keys.resize(size);
    values.resize(size);
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    pages = {.keys = {reinterpret_cast<std::byte*>(keys.data())},
             .values = {reinterpret_cast<std::byte*>(values.data())},
             .num_blocks = blocks,
             .n_kv_heads = c.n_kv_heads,
             .block_size = c.block_size,
             .head_dim = c.head_dim,
             .type = c.type};
    const int64_t num_vectors = blocks * pages.vectors_per_block();
    if (c.type == KvType::kInt8) {
      scales.resize(static_cast<size_t>(2 * num_vectors));
      pages.keys.scales = scales.data();
      pages.values.scales = scales.data() + num_vectors;
    }
    kv_fill(pages, 0, num_vectors, KvFill::kNan);
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
             {key_rows.back().data(), width, c.head_dim},
             {value_rows.back().data(), width, c.head_dim},
             {positions, owner, spans});
    key_rows.back() = as_kept(std::move(key_rows.back()), c.type, c.head_dim);
    value_rows.back() = as_kept(std::move(value_rows.back()), c.type, c.head_dim);
  }

  // The position's key and value of a KV head become NaN.
  void spoil(size_t sequence, int64_t position, int64_t kv_head) {
    const int32_t block = tables[sequence][static_cast<size_t>(position / pages.block_size)];
    kv_fill(pages, pages.vector_at(block, kv_head, position % pages.block_size), 1, KvFill::kNan);
  }
};

// From one that takes little of a row's weight to one that takes nearly all.
std::vector<float> sinks_of(const Case& c) {
  std::vector<float> sinks;
  for (int64_t h = 0; h < (c.has_sinks ? c.n_heads : 0); ++h) {
    sinks.push_back(-3.0f + 14.0f * static_cast<float>(h) / static_cast<float>(c.n_heads));
  }
  return sinks;
}

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
    double total = c.has_sinks ? std::exp(double{sinks_of(c)[static_cast<size_t>(h)]}) : 0.0;
    for (int64_t t = begin; t <= position; ++t) {
      double score = 0;
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const float query = q[h * c.head_dim + d];
        score += double{rounds(c) ? bf16_to_float(float_to_bf16(query)) : query} * k[at(t, d)];
      }
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
  const std::vector<float> sinks = sinks_of(c);
  ctx.set_activations(c.activations);
  attention(ctx,
            out.data(),
            {.data = q,
             .stride = stride,
             .n_heads = c.n_heads,
             .scale = scale_of(c),
             .window = c.window,
             .sinks = c.has_sinks ? sinks.data() : nullptr},
            cache.pages,
            {positions, owners, cache.spans});
  return out;
}

class AttentionOf : public ::testing::TestWithParam<Kept> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionOf, ::testing::ValuesIn(kKept), [](const auto& instance) {
  return std::string(instance.param.name);
});

TEST_P(AttentionOf, EqualsDoublePrecisionAndIsTheSameOnEveryIsaThreadAndBatch) {
  for (const Case& shape : kCases) {
    const Case c = kept_as(shape, GetParam());
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
    Case widened = c;
    widened.activations = Activations::kF32;
    EXPECT_EQ(same_bits(run_attention(scalar, widened, cache, q.data(), stride, positions, owners),
                        expected),
              !rounds(c));
    for (size_t r = 0; r < positions.size(); ++r) {
      const std::vector<float> row(expected.begin() + static_cast<long>(r * width),
                                   expected.begin() + static_cast<long>((r + 1) * width));
      const auto wanted = reference_row(
          c, cache, owners[r], positions[r], q.data() + r * static_cast<size_t>(stride));
      // A rounded weight is off by a 256th at most.
      EXPECT_LE(error_of(row, wanted), rounds(c) ? 6e-3 : 5e-6)
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

// The rows of a batch: sequence and position of each.
struct Rows {
  std::vector<int32_t> positions;
  std::vector<int32_t> owners;
  void add(int32_t sequence, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      positions.push_back(static_cast<int32_t>(first + i));
      owners.push_back(sequence);
    }
  }
};

// What each row gives alone, on one thread.
std::vector<float> one_by_one(
    const Case& c, const Cache& cache, const float* q, int64_t stride, const Rows& rows) {
  Context ctx(1);
  std::vector<float> out;
  for (size_t r = 0; r < rows.positions.size(); ++r) {
    const auto row = run_attention(ctx,
                                   c,
                                   cache,
                                   q + r * static_cast<size_t>(stride),
                                   stride,
                                   {rows.positions[r]},
                                   {rows.owners[r]});
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

TEST_P(AttentionOf, TilesOfAnyNumberOfRowsAnywhereGiveTheBitsOfSingleRows) {
  constexpr Case kShapes[] = {
      {8, 1, 64, 16, 700, 0},    // one KV head for eight
      {4, 4, 16, 16, 700, 0},    // none shared
      {6, 2, 80, 24, 700, 0},    // odd groups, dims and blocks
      {12, 2, 128, 16, 700, 0},  //
      {8, 2, 32, 16, 700, 100},  // windows within and over chunks
      {4, 2, 48, 16, 700, 333},
      {4, 1, 36, 16, 700, 1},
      {8, 2, 64, 16, 700, 100, true},
  };
  std::mt19937 generator(50);
  for (const Case& shape : kShapes) {
    const Case c = kept_as(shape, GetParam());
    const Cache cache(c, {c.length, c.length, c.length}, 51);
    const int64_t stride = c.n_heads * c.head_dim;
    for (int64_t num_rows = 1; num_rows <= 33; ++num_rows) {
      Rows rows;
      // Around the chunks' borders, at the start, and anywhere; then rows of two more sequences.
      const int64_t anywhere = generator() % static_cast<uint32_t>(c.length - 40);
      const int64_t starts[] = {0, 129 - num_rows, 256 - num_rows / 2, anywhere};
      rows.add(0, std::max<int64_t>(0, starts[num_rows % 4]), num_rows);
      rows.add(2, anywhere, 1);
      rows.add(1, 640 - num_rows, num_rows % 7);
      const std::vector<float> q =
          random_floats(rows.positions.size() * static_cast<size_t>(stride), 52);
      const std::vector<float> expected = one_by_one(c, cache, q.data(), stride, rows);
      for (const Isa isa : all_isas()) {
        if (isa == Isa::kScalar && num_rows % 8 != 1) continue;  // slow
        for (const int threads : {1, 2, 5}) {
          Context ctx(threads, isa);
          const auto out =
              run_attention(ctx, c, cache, q.data(), stride, rows.positions, rows.owners);
          ASSERT_TRUE(same_bits(out, expected))
              << isa_name(isa) << " threads " << threads << " rows " << num_rows << " head_dim "
              << c.head_dim << " window " << c.window;
        }
      }
    }
  }
}

// A prompt cut anywhere gives the bits of the whole.
TEST_P(AttentionOf, ChunkedPrefillAtAnySplitGivesTheSameBits) {
  for (const Case& shape : {Case{8, 2, 64, 16, 300, 0}, Case{4, 4, 24, 5, 300, 77, true}}) {
    const Case c = kept_as(shape, GetParam());
    const Cache cache(c, {c.length}, 55);
    const int64_t stride = c.n_heads * c.head_dim;
    const std::vector<float> q = random_floats(static_cast<size_t>(c.length * stride), 56);
    Rows whole;
    whole.add(0, 0, c.length);
    Context ctx(2);
    const auto expected =
        run_attention(ctx, c, cache, q.data(), stride, whole.positions, whole.owners);
    EXPECT_TRUE(same_bits(one_by_one(c, cache, q.data(), stride, whole), expected));
    for (const int64_t split : {1, 2, 15, 16, 17, 31, 100, 127, 128, 129, 200, 255, 256, 299}) {
      Rows head;
      Rows tail;
      head.add(0, 0, split);
      tail.add(0, split, c.length - split);
      auto out = run_attention(ctx, c, cache, q.data(), stride, head.positions, head.owners);
      const auto rest = run_attention(
          ctx, c, cache, q.data() + split * stride, stride, tail.positions, tail.owners);
      out.insert(out.end(), rest.begin(), rest.end());
      ASSERT_TRUE(same_bits(out, expected)) << "split at " << split;
    }
  }
}

// Long contexts of few rows are spread over threads by chunks, also when not all partial states
// fit at once.
TEST_P(AttentionOf, LongContextsSpreadOverThreadsGiveTheSameBits) {
  for (const Case& shape : {Case{2, 1, 16, 16, 9000, 0, true}, Case{128, 1, 128, 16, 20000, 0}}) {
    const Case c = kept_as(shape, GetParam());
    const Cache cache(c, {c.length}, 57);
    const int64_t stride = c.n_heads * c.head_dim;
    Rows rows;
    rows.add(0, c.length - 3, 3);
    const std::vector<float> q = random_floats(static_cast<size_t>(3 * stride), 58);
    const std::vector<float> expected = one_by_one(c, cache, q.data(), stride, rows);
    for (const int threads : {2, 3, 4}) {
      Context ctx(threads);
      EXPECT_TRUE(same_bits(
          run_attention(ctx, c, cache, q.data(), stride, rows.positions, rows.owners), expected))
          << threads;
    }
  }
}

// A verify's later rows have written NaN: earlier rows of the same tile must not see it.
TEST(Attention, NanInAValueReachesOnlyRowsThatSeeIt) {
  const Case c{4, 2, 24, 16, 300, 0};
  for (const int64_t spoiled : {60, 141, 299}) {
    Cache cache(c, {c.length}, 59);
    const int64_t slot = (cache.tables[0][static_cast<size_t>(spoiled / 16)] * 2) * 16;
    cache.values[static_cast<size_t>((slot + spoiled % 16) * c.head_dim)] = kPoison;
    Rows rows;
    rows.add(0, std::max<int64_t>(0, spoiled - 9), std::min<int64_t>(12, 309 - spoiled));
    const int64_t stride = c.n_heads * c.head_dim;
    const std::vector<float> q =
        random_floats(rows.positions.size() * static_cast<size_t>(stride), 60);
    for (const Isa isa : all_isas()) {
      Context ctx(2, isa);
      const auto out = run_attention(ctx, c, cache, q.data(), stride, rows.positions, rows.owners);
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t row = i / static_cast<size_t>(stride);
        const size_t head = i % static_cast<size_t>(stride) / 24;
        const bool sees = rows.positions[row] >= spoiled && head < 2 && i % 24 == 0;
        ASSERT_EQ(std::isnan(out[i]), sees) << isa_name(isa) << ' ' << i;
      }
    }
  }
}

TEST_P(AttentionOf, NanVectorsReachOnlyRowsThatSeeThem) {
  const Case c = kept_as({4, 2, 32, 16, 300, 0}, GetParam());
  for (const int64_t spoiled : {60, 141, 299}) {
    Cache cache(c, {c.length}, 63);
    cache.spoil(0, spoiled, 1);
    Rows rows;
    rows.add(0, spoiled - 9, std::min<int64_t>(12, 309 - spoiled));
    const int64_t stride = c.n_heads * c.head_dim;
    const std::vector<float> q =
        random_floats(rows.positions.size() * static_cast<size_t>(stride), 64);
    for (const Isa isa : all_isas()) {
      Context ctx(2, isa);
      const auto out = run_attention(ctx, c, cache, q.data(), stride, rows.positions, rows.owners);
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t row = i / static_cast<size_t>(stride);
        const size_t head = i % static_cast<size_t>(stride) / 32;
        ASSERT_EQ(std::isnan(out[i]), rows.positions[row] >= spoiled && head >= 2) << i;
      }
    }
  }
}

// Rows need not be in order, nor follow each other.
TEST(Attention, RowsInAnyOrderGiveTheSameBits) {
  const Case c{4, 1, 32, 16, 500, 150};
  const Cache cache(c, {c.length, c.length}, 61);
  Rows rows;
  for (const int32_t p : {499, 3, 4, 5, 250, 400, 401, 100, 0, 0, 499}) {
    rows.add(p % 2, p, 1);
    rows.add(1, p, 1);
  }
  const std::vector<float> q = random_floats(rows.positions.size() * 128, 62);
  Context ctx(2);
  EXPECT_TRUE(same_bits(run_attention(ctx, c, cache, q.data(), 128, rows.positions, rows.owners),
                        one_by_one(c, cache, q.data(), 128, rows)));
}

TEST(Attention, NoRowsIsNothing) {
  Context ctx(2);
  const Case c{2, 1, 16, 16, 20, 0};
  const Cache cache(c, {c.length}, 33);
  EXPECT_TRUE(run_attention(ctx, c, cache, nullptr, 32, {}, {}).empty());
}

}  // namespace
}  // namespace outrider::ops
