// Whoever asks while weights are read hears how far that is, of all models of the process together.
#include "runtime/ranks/loading/weight_reading.h"

#include <gtest/gtest.h>

#include "runtime/base/telemetry/load_progress.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

double bytes_read_of(const std::string& name, Role role) {
  const ModelConfig config = model_config_of(name, role);
  const auto weights =
      weights_of(name, role, config, shard_model(config, 0, 1), ops::ThreadPlan(2));
  return static_cast<double>(weights->num_bytes_read);
}

TEST(WeightReading, TellsHowFarItIs) {
  EXPECT_EQ(load_progress().all_bytes, 0u);
  const double target = bytes_read_of("embedded", Role::kTarget);
  const auto expect_all_read_of = [](double num_bytes) {
    EXPECT_EQ(load_progress().read_bytes, load_progress().all_bytes);
    // Vectors, such as norms, are read before the rest and are too few to be counted.
    EXPECT_NEAR(static_cast<double>(load_progress().all_bytes), num_bytes, 0.01 * num_bytes);
  };
  expect_all_read_of(target);
  const double draft = bytes_read_of("embedded", Role::kDraft);
  expect_all_read_of(target + draft);
}

}  // namespace
}  // namespace outrider
