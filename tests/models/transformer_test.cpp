// The forward pass on real weights: the 200 greedy tokens of stories260K, when that model is there.
#include "models/transformer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

TEST(Transformer, Stories260kWritesTheKnownTokens) {
  const auto data = data_dir();
  if (!data) GTEST_SKIP() << "no real inputs on this machine";
  const auto dir = *data / "models" / "stories260K";
  std::ifstream file(dir / "greedy200.ids.txt");
  std::vector<int32_t> expected{std::istream_iterator<int32_t>(file), {}};
  ASSERT_EQ(expected.size(), 200u);
  for (const ops::Isa isa : available_isas()) {
    LoneModel lone(dir, isa);
    const std::vector<int32_t> bos = {1};
    EXPECT_EQ(lone.greedy(bos, 200, block_ids(3, 20)), expected) << ops::isa_name(isa);
  }
}

}  // namespace
}  // namespace outrider
