// See played_rounds.h.
#include "tests/ranks/played_rounds.h"

#include "runtime/ranks/loading/model_probe.h"
#include "runtime/ranks/target/loop.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {

std::string run_targets(int num_targets, const std::function<void(World&, TargetRank&)>& rank0) {
  const RunConfig config = embedded_config(num_targets, 0);
  const RankLayout layout{num_targets, false};
  try {
    run_in_process(num_targets, [&](World& world) {
      LoadedModel loaded =
          load_target(config, layout, world.rank(), 1, world.make_target_group(num_targets));
      TargetRank target(*loaded.model, *loaded.group);
      if (world.rank() == 0) {
        rank0(world, target);
      } else {
        run_target_loop(world, layout, target);
      }
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

RoundPlan shutdown_plan(uint64_t round) {
  RoundPlan plan;
  plan.round = round;
  plan.shutdown = true;
  return plan;
}

}  // namespace outrider::test
