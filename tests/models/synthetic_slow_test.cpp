// The draft of the synthetic pair writes the tokens that an independent float32 program wrote with
// the same weights, and the forward benchmark runs and prints what it promises.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/synthetic/synthetic.h"
#include "runtime/base/error.h"
#include "runtime/commands/bench/machine/forward_bench.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

TEST(SyntheticPair, TheDraftWritesTheKnownTokens) {
  const ModelConfig config = synthetic_shape("tinyllama-1.1b@2");
  const ModelShard shard = shard_model(config, 0, 1);
  const auto group = make_solo_group();
  ops::Context ctx(2);
  Transformer model(
      config, random_weights(config, shard, 42, ops::DType::kBF16), shard, kOptions, *group, ctx);
  std::vector<int32_t> text = {1};
  for (int32_t token = 1000; token <= 15'000; token += 1000) text.push_back(token);
  const size_t prompt_size = text.size();
  const auto blocks = block_ids(0, 2);
  while (text.size() < prompt_size + 8) {
    Batch batch;
    append_rows(batch, text, 0, blocks);
    batch.logit_rows = {static_cast<int32_t>(text.size()) - 1};
    text.push_back(lowest_argmax(model.forward(batch)));
  }
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt_size));
  EXPECT_EQ(text, (std::vector<int32_t>{28470, 20526, 17770, 31474, 13695, 26158, 25167, 11312}));
}

TEST(ForwardBench, PrintsOneJsonObject) {
  std::FILE* out = std::tmpfile();
  ASSERT_NE(out, nullptr);
  run_forward_bench({.shape = "tinyllama-1.1b@1", .num_threads = 1, .steps = 2, .json = true}, out);
  std::rewind(out);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), out));
  std::fclose(out);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json.at("shape"), "tinyllama-1.1b@1");
  for (const char* key : {"tokens_per_s", "decode_gb_per_s", "read_gb_per_s", "share_percent"}) {
    EXPECT_GT(json.at(key).get<double>(), 0.0) << key;
  }
  EXPECT_EQ(json.at("step_ms_by_rows").size(), 6u);
  for (const char* rows : {"1", "5"}) {
    EXPECT_GT(json.at("strict_by_rows").at(rows).at("step_ms"), 0.0) << rows;
    EXPECT_GT(json.at("strict_by_rows").at(rows).at("ratio_to_fast"), 0.0) << rows;
    EXPECT_GT(json.at("strict_by_rows").at(rows).at("cpu_ratio_to_fast"), 0.0) << rows;
  }
}

TEST(ForwardBench, RefusesBadOptions) {
  EXPECT_THROW(run_forward_bench({.steps = 0}, stdout), Error);
  EXPECT_THROW(run_forward_bench({.num_threads = 0}, stdout), Error);
  EXPECT_THROW(run_forward_bench({.shape = "none"}, stdout), Error);
  EXPECT_THROW(run_forward_bench({.isa = "mmx"}, stdout), Error);
}

}  // namespace
}  // namespace outrider
