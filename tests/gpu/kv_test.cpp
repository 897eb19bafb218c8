// Writing keys and values: against the ops of the CPU; blocks as a whole.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "runtime/ops/ops.h"
#include "tests/gpu/attention_case.h"

namespace outrider::gpu {
namespace {

struct Turned {
  Type type;
  bool normed;
  int32_t rotary_dim;
  bool interleaved = false;
  bool grows = false;
  HeadNorm norm = HeadNorm::kHead;
  bool norms_values = false;
};

class RopeWrite : public GpuTest, public ::testing::WithParamInterface<Turned> {};
class LatentOps : public GpuTest, public ::testing::WithParamInterface<Type> {};
class KvBlocks : public GpuTest, public ::testing::WithParamInterface<Type> {};
using RopeWriteOfKeys = GpuTest;
using RopeWriteOfQueries = GpuTest;

constexpr int32_t kHeads = 6;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 40;
constexpr int32_t kBlockSize = 8;
constexpr int32_t kNumBlocks = 5;
constexpr int32_t kAllHeads = kHeads + 2 * kKvHeads;
constexpr size_t kWidth = size_t{kAllHeads} * kHeadDim;
// Of the model whose heads these are: two query heads and one KV head are another rank's, in front.
constexpr AllHeads kModel = {kHeads + 2, kKvHeads + 1};
constexpr int64_t kModelHeads = kModel.n_heads + kModel.n_kv_heads;

KvView pages_of(Type type, void* keys, void* values) {
  return {keys, values, type, kNumBlocks, kKvHeads, kBlockSize, kHeadDim};
}

float growth(int32_t position) { return 1.0f + 0.1f * static_cast<float>(position); }

// As the CPU's ops do it.
void norm_heads(const ops::HeadRows& x,
                const std::vector<float>& weight,
                HeadNorm norm,
                bool keys) {
  ops::Context ctx(1);
  if (norm == HeadNorm::kHead) {
    ops::rms_norm_heads(ctx, x, weight.data(), 1e-6f);
  } else if (norm == HeadNorm::kOwnHead) {
    ops::layer_norm_heads(ctx, x, weight.data(), 1e-6f);
  } else {  // the other rank's squares are left out
    std::vector<float> sums(static_cast<size_t>(x.rows * x.n_heads));
    ops::head_squares(ctx, sums.data(), x.n_heads, x);
    std::vector<float> padded;
    const int64_t all = keys ? kModel.n_kv_heads : kModel.n_heads;
    for (int64_t r = 0; r < x.rows; ++r) {
      padded.insert(padded.end(), static_cast<size_t>(all - x.n_heads), 0.0f);
      padded.insert(padded.end(), sums.begin() + r * x.n_heads, sums.begin() + (r + 1) * x.n_heads);
    }
    ops::rms_norm_all_heads(ctx, x, {padded.data(), all, all}, weight.data(), 1e-6f);
  }
}

// The rows as the CPU's ops leave them.
std::vector<float> expected_rows(std::vector<float> rows,
                                 const std::vector<int32_t>& positions,
                                 const std::vector<float>& angles,
                                 const std::vector<float>& q_norm,
                                 const std::vector<float>& k_norm,
                                 const Turned& turned) {
  constexpr HeadNorm kHead = HeadNorm::kHead;
  ops::Context ctx(1);
  const auto num_rows = static_cast<int64_t>(positions.size());
  float* const keys = rows.data() + kHeads * kHeadDim;
  const ops::HeadRows queries = {rows.data(), num_rows, kWidth, kHeads, kHeadDim};
  if (turned.normed) {
    norm_heads(queries, q_norm, turned.norm, false);
    norm_heads({keys, num_rows, kWidth, kKvHeads, kHeadDim}, k_norm, turned.norm, true);
  }
  if (turned.norms_values) {  // by the weights of queries
    float* const values = keys + kKvHeads * kHeadDim;
    norm_heads({values, num_rows, kWidth, kKvHeads, kHeadDim}, q_norm, kHead, true);
  }
  std::vector<float> of_rows;
  for (const int32_t position : positions) {
    const auto from = angles.begin() + position * turned.rotary_dim;
    of_rows.insert(of_rows.end(), from, from + turned.rotary_dim);
  }
  ops::rope(ctx,
            {rows.data(), num_rows, kWidth, kHeads + kKvHeads, kHeadDim},
            {of_rows.data(), turned.rotary_dim, turned.interleaved});
  std::vector<float> factors;
  for (const int32_t position : positions) factors.push_back(growth(position));
  if (turned.grows) ops::scale_heads(ctx, queries, factors.data());
  return rows;
}

TEST_P(RopeWrite, IsNormRopeAndWriteOfTheCpu) {
  const Turned& turned = GetParam();
  const TestStep step(*device, {17, 18, 3}, {0, 0, 1}, {4, 0, 2, 1, -1, -1}, 3, 3);
  const DeviceArray<float> qkv(*device, random_floats(3 * kWidth, 21));
  const DeviceArray<float> q_norm(*device, random_floats(kHeads * kHeadDim, 22));
  const DeviceArray<float> k_norm(*device, random_floats(kKvHeads * kHeadDim, 23));
  std::vector<float> growths;
  for (int32_t position = 0; position < 20; ++position) growths.push_back(growth(position));
  const DeviceArray<float> factors(*device, growths);
  DeviceArray<float> squares(*device, std::vector<float>(4 * kModelHeads, NAN));
  const DeviceArray<float> angles(*device,
                                  random_floats(static_cast<size_t>(20 * turned.rotary_dim), 24));
  const size_t page_elements = size_t{kNumBlocks} * kKvHeads * kBlockSize * kHeadDim;
  DeviceArray<uint8_t> keys(*device, page_elements * type_bytes(turned.type));
  DeviceArray<uint8_t> values(*device, page_elements * type_bytes(turned.type));
  DeviceArray<uint8_t> queries(*device, size_t{4} * kHeads * kHeadDim * type_bytes(turned.type));
  for (auto* memory : {&keys, &values, &queries}) memory->poison();
  ops.head_squares(*stream,
                   {.sums = squares.device(),
                    .qkv = qkv.device(),
                    .all = kModel,
                    .first_head = kModel.n_heads - kHeads,
                    .first_kv_head = kModel.n_kv_heads - kKvHeads,
                    .n_heads = kHeads,
                    .n_kv_heads = kKvHeads,
                    .n_summed_kv_heads = kKvHeads,
                    .head_dim = kHeadDim,
                    .max_rows = 4,
                    .step = step.view});
  ops.rope_write(*stream,
                 {.qkv = qkv.device(),
                  .q_norm = turned.normed ? q_norm.device() : nullptr,
                  .k_norm = turned.normed ? k_norm.device() : nullptr,
                  .v_norm = turned.norms_values ? q_norm.device() : nullptr,
                  .eps = 1e-6f,
                  .to = {.queries = queries.device(),
                         .n_heads = kHeads,
                         .kv = pages_of(turned.type, keys.device(), values.device()),
                         .rotary = {angles.device(), turned.rotary_dim}},
                  .max_rows = 4,
                  .step = step.view,
                  .norm = turned.norm,
                  .squares = squares.device(),
                  .all = kModel,
                  .interleaved = turned.interleaved,
                  .query_factors = turned.grows ? factors.device() : nullptr});
  stream->wait();
  for (auto* memory : {&keys, &values, &queries}) memory->pull();

  const auto vector = [](const auto& shared) {
    return std::vector(shared.host(), shared.host() + shared.size());
  };
  const std::vector<float> expected = expected_rows(
      vector(qkv), vector(step.positions), vector(angles), vector(q_norm), vector(k_norm), turned);
  const double tolerance = turned.type == Type::kF32 ? 1e-6 : 4e-3;
  const int32_t blocks[] = {2, 2, 1};  // of the rows, by the tables
  size_t num_written = 0;
  for (size_t row = 0; row < 3; ++row) {
    for (size_t i = 0; i < kWidth; ++i) {
      const auto head = static_cast<int32_t>(i / kHeadDim);
      const size_t d = i % kHeadDim;
      float found = 0.0f;
      if (head < kHeads) {
        found = widen(turned.type, queries.host(), row * kHeads * kHeadDim + i);
      } else {
        const bool is_key = head < kHeads + kKvHeads;
        const int32_t kv_head = (head - kHeads) % kKvHeads;
        const int32_t slot =
            (blocks[row] * kKvHeads + kv_head) * kBlockSize + step.positions[row] % kBlockSize;
        found = widen(turned.type,
                      is_key ? keys.host() : values.host(),
                      static_cast<size_t>(slot) * kHeadDim + d);
        ++num_written;
      }
      const double off = std::fabs(double{found} - expected[row * kWidth + i]);
      EXPECT_TRUE(off <= tolerance * (1.0 + std::fabs(expected[row * kWidth + i])))
          << "row " << row << " head " << head << " dim " << d;
    }
  }
  size_t num_found = 0;  // nothing else was written
  for (size_t i = 0; i < page_elements; ++i) {
    num_found += std::isnan(widen(turned.type, keys.host(), i)) ? 0 : 1;
    num_found += std::isnan(widen(turned.type, values.host(), i)) ? 0 : 1;
  }
  EXPECT_EQ(num_found, num_written);
  EXPECT_TRUE(std::isnan(widen(turned.type, queries.host(), size_t{3} * kHeads * kHeadDim)));
}

constexpr HeadNorm kOwn = HeadNorm::kOwnHead;
constexpr HeadNorm kAll = HeadNorm::kAllHeads;
INSTANTIATE_TEST_SUITE_P(Types,
                         RopeWrite,
                         ::testing::Values(Turned{Type::kF32, false, kHeadDim},
                                           Turned{Type::kF32, true, kHeadDim},
                                           Turned{Type::kF32, true, 16},
                                           Turned{Type::kBF16, true, kHeadDim},
                                           Turned{Type::kF16, false, 24},
                                           Turned{Type::kF32, false, 24, true},
                                           Turned{Type::kBF16, true, kHeadDim, true, true},
                                           Turned{Type::kF32, false, 0, false, true},
                                           Turned{Type::kF32, true, 16, false, false, kOwn},
                                           Turned{Type::kF32, true, 16, false, false, kOwn, true},
                                           Turned{Type::kF32, false, 0, false, false, kAll, true},
                                           Turned{Type::kF32, true, 16, true, true, kAll},
                                           Turned{Type::kF16, true, 0, false, false, kAll}));

// Where values are keys they have the bits that a projection of their own would have given.
TEST_F(RopeWriteOfKeys, WritesThemAsValuesToo) {
  constexpr size_t kShort = size_t{kHeads + kKvHeads} * kHeadDim;
  const TestStep step(*device, {5, 9}, {0, 0}, {4, 2}, 2, 2);
  const DeviceArray<float> angles(*device, random_floats(size_t{10} * kHeadDim, 32));
  const DeviceArray<float> norm(*device, random_floats(kHeadDim, 33));
  const DeviceArray<float> ones(*device, std::vector<float>(kHeadDim, 1.0f));
  const DeviceArray<float> rows(*device, random_floats(2 * kShort, 34));
  DeviceArray<float> with_values(*device, 2 * kWidth);
  for (size_t row = 0; row < 2; ++row) {
    const float* const from = rows.host() + row * kShort;
    float* const to = with_values.host() + row * kWidth;
    std::copy_n(from, kShort, to);
    std::copy_n(from + kHeads * kHeadDim, kKvHeads * kHeadDim, to + kShort);
  }
  with_values.push();
  const auto written = [&](const float* qkv, bool k_is_v) {
    constexpr size_t kPages = size_t{kNumBlocks} * kKvHeads * kBlockSize * kHeadDim;
    DeviceArray<float> queries(*device, size_t{2} * kHeads * kHeadDim);
    DeviceArray<float> keys(*device, kPages);
    DeviceArray<float> values(*device, kPages);
    ops.rope_write(*stream,
                   {.qkv = qkv,
                    .q_norm = norm.device(),
                    .k_norm = norm.device(),
                    .v_norm = ones.device(),
                    .eps = 1e-6f,
                    .to = {.queries = queries.device(),
                           .n_heads = kHeads,
                           .kv = pages_of(Type::kF32, keys.device(), values.device()),
                           .rotary = {angles.device(), kHeadDim}},
                    .max_rows = 2,
                    .step = step.view,
                    .k_is_v = k_is_v});
    stream->wait();
    std::vector<float> all = queries.pull();
    for (DeviceArray<float>* pages : {&keys, &values}) {
      const std::vector<float>& of_pages = pages->pull();
      all.insert(all.end(), of_pages.begin(), of_pages.end());
    }
    return all;
  };
  EXPECT_EQ(written(rows.device(), true), written(with_values.device(), false));
}

// Of a layer that reads another's keys and values.
TEST_F(RopeWriteOfQueries, WritesNothingElse) {
  const DeviceArray<int32_t> positions(*device, std::vector<int32_t>{5, 6});
  const DeviceArray<StepCounts> counts(*device, {{.num_rows = 2}});
  const DeviceArray<float> rows(*device, random_floats(size_t{2} * kHeads * kHeadDim, 31));
  DeviceArray<float> queries(*device, rows.size());
  const QkvArgs to = {.queries = queries.device(),
                      .n_heads = kHeads,
                      .kv = {.type = Type::kF32, .n_kv_heads = 0, .head_dim = kHeadDim}};
  const StepView step = {.counts = counts.device(), .positions = positions.device()};
  ops.rope_write(*stream, {.qkv = rows.device(), .to = to, .max_rows = 2, .step = step});
  stream->wait();
  EXPECT_EQ(queries.pull(), std::vector<float>(rows.host(), rows.host() + rows.size()));
}

// A product of each head's own, to a product's input and to the end of each query.
TEST_P(LatentOps, MultiplyEachHeadByItsOwnMatrix) {
  constexpr int32_t kRows = 6;  // more than a block takes
  constexpr int32_t kOut = 10;
  constexpr int32_t kIn = 37;
  constexpr int32_t kStride = kHeads * 40 + 3;
  const DeviceArray<float> in(*device, random_floats(kRows * kStride, 41));
  DeviceArray<uint8_t> weights(*device, size_t{kHeads * kOut * kIn} * type_bytes(GetParam()));
  const std::vector<float> numbers = random_floats(size_t{kHeads * kOut * kIn}, 42);
  for (size_t i = 0; i < numbers.size(); ++i) narrow(GetParam(), weights.host(), i, numbers[i]);
  weights.push();
  const DeviceArray<StepCounts> counts(*device, {{.num_rows = kRows - 1}});
  DeviceArray<float> out(*device, activation_elements(kRows, kHeads * kOut));
  DeviceArray<float> queries(*device, size_t{kRows * kHeads * kHeadDim});
  queries.poison();
  HeadProductArgs args = {.in = in.device() + 3,
                          .row_stride = kStride,
                          .head_stride = 40,
                          .weights = {weights.device(), GetParam(), kOut, kIn},
                          .n_heads = kHeads,
                          .queries = queries.device(),
                          .query_type = Type::kF32,
                          .query_dim = kHeadDim,
                          .max_rows = kRows,
                          .step = {.counts = counts.device()}};
  ops.head_product(*stream, args);
  args.out = {out.device(), Type::kF32, kHeads * kOut};
  ops.head_product(*stream, args);
  stream->wait();
  queries.pull();
  out.pull();
  for (int32_t i = 0; i < (kRows - 1) * kHeads * kOut; ++i) {
    const int32_t query = i / kOut;  // row and head
    double expected = 0.0;
    for (int32_t k = 0; k < kIn; ++k) {
      const int32_t at = 3 + query / kHeads * kStride + query % kHeads * 40 + k;
      const int32_t weight = (query % kHeads * kOut + i % kOut) * kIn + k;
      expected += double{in[static_cast<size_t>(at)]} *
                  widen(GetParam(), weights.host(), static_cast<size_t>(weight));
    }
    EXPECT_NEAR(out[static_cast<size_t>(i)], expected, 1e-4) << i;
    const int32_t at = (query + 1) * kHeadDim - kOut + i % kOut;
    EXPECT_EQ(queries[static_cast<size_t>(at)], out[static_cast<size_t>(i)]) << i;
  }
  EXPECT_TRUE(std::isnan(queries[0]));                   // in front of them
  EXPECT_TRUE(std::isnan(queries[queries.size() - 1]));  // a row the step does not have
}

// What turns of queries and key, and the norm of what is behind it, as the CPU's ops do it.
TEST_P(LatentOps, WriteQueriesAndTheKeyOfEachRow) {
  constexpr int32_t kTurned = 8;
  constexpr int32_t kQueryDim = 20;
  constexpr int32_t kLatent = kHeadDim - kTurned;
  const std::vector<int32_t> at = {17, 18, 3};
  const TestStep step(*device, at, {0, 0, 1}, {4, 0, 2, 1, -1, -1}, 3, 3);
  const DeviceArray<float> angles(*device, random_floats(size_t{20} * kTurned, 43));
  const DeviceArray<float> q(*device, random_floats(size_t{3} * kHeads * kQueryDim, 44));
  const DeviceArray<float> k(*device, random_floats(size_t{3} * kHeadDim, 45));
  const DeviceArray<float> k_norm(*device, random_floats(kLatent, 46));
  DeviceArray<uint8_t> queries(*device, size_t{4} * kHeads * kHeadDim * type_bytes(GetParam()));
  DeviceArray<uint8_t> keys(*device,
                            size_t{kNumBlocks} * kBlockSize * kHeadDim * type_bytes(GetParam()));
  for (const bool interleaved : {false, true}) {
    for (auto* memory : {&keys, &queries}) memory->poison();
    const KvView kv = {
        keys.device(), keys.device(), GetParam(), kNumBlocks, 1, kBlockSize, kHeadDim};
    ops.latent_write(*stream,
                     {.queries = q.device(),
                      .query_dim = kQueryDim,
                      .keys = k.device(),
                      .k_norm = k_norm.device(),
                      .eps = 1e-6f,
                      .interleaved = interleaved,
                      .to = {.queries = queries.device(),
                             .n_heads = kHeads,
                             .kv = kv,
                             .rotary = {angles.device(), kTurned}},
                      .max_rows = 4,
                      .step = step.view});
    stream->wait();
    for (auto* memory : {&keys, &queries}) memory->pull();
    std::vector<float> of_rows;
    for (const int32_t position : at) {
      const float* const from = angles.host() + position * kTurned;
      of_rows.insert(of_rows.end(), from, from + kTurned);
    }
    ops::Context ctx(1);
    const ops::RowAngles turn = {of_rows.data(), kTurned, interleaved};
    std::vector<float> expected_k(k.host(), k.host() + k.size());
    ops::rope(ctx, {expected_k.data(), 3, kHeadDim, 1, kHeadDim}, turn);
    ops::rms_norm_heads(
        ctx, {expected_k.data() + kTurned, 3, kHeadDim, 1, kLatent}, k_norm.host(), 1e-6f);
    std::vector<float> expected_q(q.host(), q.host() + q.size());
    float* const turning = expected_q.data() + kQueryDim - kTurned;
    ops::rope(ctx, {turning, 3, kHeads * kQueryDim, kHeads, kQueryDim}, turn);
    const double tolerance = GetParam() == Type::kF32 ? 1e-6 : 4e-3;
    const int32_t blocks[] = {2, 2, 1};  // of the rows, by the tables
    for (size_t row = 0; row < 3; ++row) {
      const auto slot = static_cast<size_t>(blocks[row] * kBlockSize + at[row] % kBlockSize);
      for (size_t i = 0; i < kHeadDim; ++i) {
        const float wanted = expected_k[row * kHeadDim + i];
        const float found = widen(GetParam(), keys.host(), slot * kHeadDim + i);
        EXPECT_NEAR(found, wanted, tolerance * (1 + std::fabs(wanted))) << row << " " << i;
      }
    }
    for (size_t query = 0; query < 3 * kHeads; ++query) {
      for (size_t i = 0; i < kHeadDim; ++i) {
        const float found = widen(GetParam(), queries.host(), query * kHeadDim + i);
        if (i >= kTurned) {
          EXPECT_TRUE(std::isnan(found));
          continue;
        }
        const float wanted = expected_q[(query + 1) * kQueryDim - kTurned + i];
        EXPECT_NEAR(found, wanted, tolerance * (1 + std::fabs(wanted))) << query << " " << i;
      }
    }
    EXPECT_TRUE(std::isnan(widen(GetParam(), queries.host(), size_t{3} * kHeads * kHeadDim)));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LatentOps, ::testing::Values(Type::kF32, Type::kBF16, Type::kF16));

TEST_P(KvBlocks, AreCopiedClearedAndPoisonedWhole) {
  constexpr size_t kPerBlock = size_t{kKvHeads} * kBlockSize * kHeadDim;
  const size_t block_bytes = kPerBlock * type_bytes(GetParam());
  const size_t small_bytes = kBlockSize * kHeadDim * type_bytes(GetParam());
  DeviceArray<uint8_t> small(*device, std::vector<uint8_t>(2 * kNumBlocks * small_bytes, 1));
  DeviceArray<uint8_t> keys(*device, kNumBlocks * block_bytes);
  DeviceArray<uint8_t> values(*device, kNumBlocks * block_bytes);
  for (size_t i = 0; i < kNumBlocks * kPerBlock; ++i) {
    narrow(GetParam(), keys.host(), i, 1.0f + static_cast<float>(i % 97));
    narrow(GetParam(), values.host(), i, -1.0f - static_cast<float>(i % 89));
  }
  for (const auto* memory : {&keys, &values}) memory->push();
  const KvView kv = pages_of(GetParam(), keys.device(), values.device());
  KvView other = pages_of(GetParam(), small.device(), small.device() + kNumBlocks * small_bytes);
  other.n_kv_heads = 1;  // layers may differ
  const DeviceArray<KvView> layers(*device, std::vector<KvView>{other, kv});
  const DeviceArray<int32_t> cleared(*device, std::vector<int32_t>{4, 1});
  const DeviceArray<int32_t> poisoned(*device, std::vector<int32_t>{0});
  ops.copy_block(*stream, {.kv = kv, .from = 2, .to = 3});
  BlockFillArgs fill = {.kv = layers.device(), .num_layers = 2};
  ops.fill_blocks(*stream, fill);  // none
  fill.blocks = cleared.device();
  fill.num_blocks = 2;
  ops.fill_blocks(*stream, fill);
  fill.blocks = poisoned.device();
  fill.num_blocks = 1;
  fill.poison = true;
  ops.fill_blocks(*stream, fill);
  stream->wait();
  small.pull();
  for (size_t i = 0; i < small.size(); ++i) {
    const size_t block = i / small_bytes % kNumBlocks;
    EXPECT_EQ(small[i], block == 0 ? 0xff : block == 1 || block == 4 ? 0 : 1) << i;
  }
  for (auto* memory : {&keys, &values}) memory->pull();
  for (size_t i = 0; i < kNumBlocks * kPerBlock; ++i) {
    const float key = widen(GetParam(), keys.host(), i);
    const float value = widen(GetParam(), values.host(), i);
    const size_t block = i / kPerBlock;
    if (block == 0) {
      EXPECT_TRUE(std::isnan(key) && std::isnan(value));
    } else if (block == 1 || block == 4) {
      EXPECT_TRUE(key == 0.0f && value == 0.0f);
    } else {
      const size_t from = 2 * kPerBlock + i % kPerBlock;
      EXPECT_EQ(key, 1.0f + static_cast<float>(from % 97));
      EXPECT_EQ(value, -1.0f - static_cast<float>(from % 89));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KvBlocks, ::testing::Values(Type::kF32, Type::kBF16, Type::kF16));

}  // namespace
}  // namespace outrider::gpu
