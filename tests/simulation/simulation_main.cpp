// The long form of the simulation: jobs of one seed after the other until so many rounds are
// played.
//     fault_simulation [--rounds N] [--seed N] [--threads] [--seeds N]
// With --threads whole jobs as threads, else everything on one thread. Seeds count up from --seed;
// --seeds ends after so many. Exit code 1 when anything was broken; each seed is said.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <string_view>

#include "tests/simulation/simulation.h"

namespace outrider::test {
namespace {

struct Options {
  uint64_t num_rounds = 100000;
  uint64_t first_seed = 1;
  uint64_t num_seeds = UINT64_MAX;
  bool threads = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--threads") {
      options.threads = true;
      continue;
    }
    uint64_t* const value = name == "--rounds"  ? &options.num_rounds
                            : name == "--seed"  ? &options.first_seed
                            : name == "--seeds" ? &options.num_seeds
                                                : nullptr;
    if (value == nullptr || i + 1 == argc) {
      fmt::print(stderr,
                 "usage: fault_simulation [--rounds N] [--seed N] [--seeds N] [--threads]\n");
      std::exit(2);
    }
    *value = std::strtoull(argv[++i], nullptr, 10);
  }
  return options;
}

int run(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  SimulationResult total;
  uint64_t seed = options.first_seed;
  uint64_t num_broken = 0;
  for (; total.num_rounds < options.num_rounds && seed - options.first_seed < options.num_seeds;
       ++seed) {
    // An internal error ends the process: this line is then the last.
    std::fprintf(stderr, "\rseed %llu ", static_cast<unsigned long long>(seed));
    const SimulationResult result = options.threads ? simulate_job(seed) : simulate_rounds(seed);
    for (const std::string& fault : result.faults) fmt::print("seed {}: {}\n", seed, fault);
    num_broken += result.faults.empty() ? 0 : 1;
    if (!result.faults.empty()) std::fflush(stdout);
    total.add(result);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(
      "\rseeds {} to {}: {} rounds in {:.0f} s ({:.0f} s of virtual time), {} tokens, {} texts "
      "compared, {} of {} draft tokens accepted, {} prepared blocks and {} bonus drafts used\n",
      options.first_seed,
      seed - 1,
      total.num_rounds,
      seconds,
      total.seconds,
      total.num_tokens,
      total.num_compared,
      total.num_accepted,
      total.num_drafts_judged,
      total.num_hits,
      total.num_bonus_drafts);
  fmt::print(
      "faults: {} of frames, {} lies, {} lives of drafts, {} preemptions, {} cancelled, {} failed "
      "on purpose; digest {:016x}\n",
      total.num_link_faults,
      total.num_lies,
      total.num_lives,
      total.num_preempted,
      total.num_cancelled,
      total.num_failed,
      total.digest);
  fmt::print("violations: {} in {} seeds\n", total.faults.size(), num_broken);
  return num_broken == 0 ? 0 : 1;
}

}  // namespace
}  // namespace outrider::test

int main(int argc, char** argv) { return outrider::test::run(outrider::test::parse(argc, argv)); }
