// Sizes of the engine from the options and the model: what cannot be served is refused.
#include "runtime/ranks/loading/engine_sizes.h"

#include <gtest/gtest.h>

#include "models/synthetic/synthetic.h"
#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

TEST(EngineSizes, ContextsLongerThanTheModelAreRefused) {
  ModelConfig model = synthetic_shape("tinyllama-1.1b@2");
  RunConfig config;
  config.max_num_seqs = 1;
  const auto sizes = [&](int32_t max_model_len) {
    config.max_model_len = max_model_len;
    return engine_sizes(config, model, RankLayout{}).max_model_len;
  };
  EXPECT_EQ(sizes(0), model.max_positions);
  EXPECT_TRUE(fails_with([&] { sizes(model.max_positions + 1); }, "more than the model's"));
  model.undecided_window = 1024;
  EXPECT_EQ(sizes(1024), 1024);
  for (const int32_t longer : {0, 1025}) {
    EXPECT_TRUE(fails_with([&] { sizes(longer); },
                           "sliding_window 1024, which is not supported for llama: give "
                           "--max-model-len 1024"));
  }
}

}  // namespace
}  // namespace outrider
