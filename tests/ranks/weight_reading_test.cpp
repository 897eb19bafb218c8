// Whoever asks while weights are read hears how far that is, of all models of the process together.
#include "runtime/ranks/loading/weight_reading.h"

#include <gtest/gtest.h>

#include "runtime/base/telemetry/load_progress.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

size_t bytes_read_of(const std::string& name, Role role) {
  const ModelConfig config = model_config_of(name, role);
  return weights_of(name, role, config, shard_model(config, 0, 1), ops::ThreadPlan(2))
      ->num_bytes_read;
}

TEST(WeightReading, TellsHowFarItIs) {
  EXPECT_EQ(load_progress().all_bytes, 0u);
  const size_t target = bytes_read_of("embedded", Role::kTarget);
  EXPECT_GT(target, 100'000u);
  EXPECT_EQ(load_progress().read_bytes, target);
  EXPECT_EQ(load_progress().all_bytes, target);
  const size_t draft = bytes_read_of("embedded", Role::kDraft);
  EXPECT_EQ(load_progress().read_bytes, target + draft);
  EXPECT_EQ(load_progress().all_bytes, target + draft);
}

}  // namespace
}  // namespace outrider
