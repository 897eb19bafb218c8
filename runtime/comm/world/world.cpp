// What all worlds share; see world.h.
#include "runtime/comm/world/world.h"

#include <fmt/format.h>

#include <cstdlib>

namespace outrider {
namespace {

class SoloGroup final : public TargetGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(std::span<float>, Fold) override {}
  void all_reduce_sum(std::span<uint64_t>) override {}
  void all_reduce_max(std::span<uint64_t>) override {}
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    OUTRIDER_CHECK(mine.size() == all.size());
    std::copy(mine.begin(), mine.end(), all.begin());
  }
};

Bytes receive_with(
    Backoff backoff, World& world, int from, int num_watched_ranks, double timeout_s) {
  while (true) {
    if (auto message = world.poll(from)) return std::move(*message);
    if (backoff.should_check()) {
      world.check_alive(num_watched_ranks);
      if (timeout_s > 0 && backoff.waited_s() > timeout_s) {
        throw Error("rank " + std::to_string(from) + " did not answer in time");
      }
    }
    world.pause(backoff);
  }
}

}  // namespace

std::unique_ptr<TargetGroup> make_solo_group() { return std::make_unique<SoloGroup>(); }

Bytes receive(World& world, int from, int num_watched_ranks, double timeout_s) {
  return receive_with(Backoff(), world, from, num_watched_ranks, timeout_s);
}

Bytes receive_soon(World& world,
                   int from,
                   int num_watched_ranks,
                   std::chrono::microseconds hot_time) {
  return receive_with(Backoff(hot_time), world, from, num_watched_ranks, 0);
}

bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

void refuse_foreign_launcher(int world_size) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return;  // mpirun, maybe inside of srun
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "PMI_SIZE"}) {
    const char* text = std::getenv(name);
    const int num_tasks = text != nullptr ? std::atoi(text) : 1;
    if (num_tasks <= world_size) continue;
    throw Error(fmt::format(
        "{} tasks were started ({}), but MPI sees {}: start them with mpirun, or srun --mpi=pmix",
        num_tasks,
        name,
        world_size));
  }
}

}  // namespace outrider
