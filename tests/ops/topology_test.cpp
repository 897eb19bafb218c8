// Which CPUs a rank's threads get: made-up machines as folders of files, and what really happens to
// threads and pages on this one.
#include "runtime/ops/cpu/threads/topology.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

using cpu::CpuTopology;
using cpu::read_topology;
using Cpus = std::vector<int>;

Cpus cpus_below(int end) {
  Cpus cpus(static_cast<size_t>(end));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

// A machine as the system's files tell of it.
class FakeMachine {
 public:
  FakeMachine() {
    std::string name = (std::filesystem::temp_directory_path() / "topologyXXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~FakeMachine() { std::filesystem::remove_all(root_); }
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  void node(int number, const std::string& cpulist) {
    write("node/node" + std::to_string(number) + "/cpulist", cpulist);
  }
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  CpuTopology read(const Cpus& allowed) const { return read_topology(root_, allowed); }

 private:
  std::filesystem::path root_;
};

// Without siblings: num_nodes of cpus_each.
CpuTopology plain_machine(int num_nodes, int cpus_each) {
  FakeMachine machine;
  for (int n = 0; n < num_nodes; ++n) {
    machine.node(n, std::to_string(n * cpus_each) + "-" + std::to_string((n + 1) * cpus_each - 1));
  }
  return machine.read(cpus_below(num_nodes * cpus_each));
}

// Two sockets of four cores with two CPUs each, numbered as Linux does.
CpuTopology siblings_machine() {
  FakeMachine machine;
  machine.node(0, "0-3,8-11");
  machine.node(1, "4-7,12-15");
  for (int c = 0; c < 16; ++c) {
    machine.write("cpu/cpu" + std::to_string(c) + "/topology/thread_siblings_list",
                  std::to_string(c % 8) + "," + std::to_string(c % 8 + 8));
  }
  return machine.read(cpus_below(16));
}

std::string refusal(const ThreadRequest& request, const CpuTopology& topology) {
  try {
    plan_threads(request, topology);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CpuList, IsReadAsWritten) {
  EXPECT_EQ(cpu::parse_cpu_list("0-3,8,10-11"), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(cpu::parse_cpu_list("7,2"), (Cpus{7, 2}));
  for (const char* bad :
       {"", ",", "1,", "a", "1-", "-1", "3-1", "1 2", "0x1", "99999999999", "0-70000", "1-2-3"}) {
    EXPECT_THROW(cpu::parse_cpu_list(bad), Error) << bad;
  }
}

TEST(Topology, OrdersCpusByNodeAndCore) {
  const CpuTopology machine = siblings_machine();
  EXPECT_TRUE(machine.has_several_nodes());
  EXPECT_EQ(machine.allowed, (Cpus{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15}));
  EXPECT_EQ(machine.nodes_of({1, 12, 4}), (Cpus{0, 1}));
  EXPECT_EQ(machine.nodes_of({5, 15}), (Cpus{1}));
}

TEST(Topology, ANodeOfMemoryAloneIsNotAPlaceForThreads) {
  FakeMachine machine;
  machine.node(0, "0-1");
  machine.node(4, "");
  const CpuTopology topology = machine.read({0, 1});
  EXPECT_FALSE(topology.has_several_nodes());
  EXPECT_EQ(topology.cpus.size(), 2u);
}

TEST(Topology, FilesThatCannotBeTrustedMakeOneNode) {
  for (const auto& [first, second] : {std::pair{"0-1", "two"},
                                      {"0-1", "1-3"},  // CPU 1 twice
                                      {"0", "1-2"},    // where is CPU 3?
                                      {"0-", "2-3"},
                                      {"", ""},
                                      {"0-1", "4294967296"}}) {
    FakeMachine machine;
    machine.node(0, first);
    machine.node(1, second);
    const CpuTopology topology = machine.read({0, 1, 2, 3});
    EXPECT_FALSE(topology.has_several_nodes()) << first << " " << second;
    EXPECT_EQ(topology.allowed, cpus_below(4));
    EXPECT_EQ(topology.cpus.size(), 4u);
  }
  const CpuTopology nothing = read_topology("no/such/folder", {3, 5});
  EXPECT_EQ(nothing.allowed, (Cpus{3, 5}));
  EXPECT_EQ(nothing.nodes_of({3, 5}), (Cpus{0}));
}

// Which run of panels the kernels' threads read (ThreadPool::for_range) and the node they lie on.
TEST(ThreadPlan, EveryNodeReadsItsOwnRunOfPanels) {
  for (const int num_nodes : {2, 4}) {
    const CpuTopology machine = plain_machine(num_nodes, 4);
    const ThreadPlan plan = plan_threads({}, machine);
    ASSERT_EQ(std::ssize(plan.cpus), 4 * num_nodes);
    EXPECT_EQ(plan.nodes, cpus_below(num_nodes));
    for (const int64_t num_panels : {int64_t{16}, int64_t{88}, int64_t{500}}) {
      std::mutex mutex;
      std::vector<std::pair<int64_t, int64_t>> ranges;
      ThreadPool pool(plan.num_threads);
      pool.for_range(num_panels, false, [&](int64_t begin, int64_t end) {
        const std::lock_guard lock(mutex);
        ranges.emplace_back(begin, end);
      });
      std::ranges::sort(ranges);
      ASSERT_EQ(ranges.size(), plan.cpus.size());
      for (size_t t = 0; t < ranges.size(); ++t) {
        const int node = machine.cpus.at(plan.cpus[t]).node;
        EXPECT_GE(ranges[t].first, num_panels * node / num_nodes);
        EXPECT_LE(ranges[t].second, num_panels * (node + 1) / num_nodes);
      }
    }
  }
}

TEST(ThreadPlan, FewerThreadsAreSpreadOverNodesAndCores) {
  const CpuTopology machine = siblings_machine();
  EXPECT_EQ(plan_threads({.num_threads = 8}, machine).cpus, (Cpus{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(plan_threads({.num_threads = 2}, machine).cpus, (Cpus{0, 4}));
  EXPECT_EQ(plan_threads({.num_threads = 16}, machine).cpus, machine.allowed);
  EXPECT_EQ(plan_threads({.num_threads = 4}, plain_machine(4, 3)).cpus, (Cpus{0, 3, 6, 9}));
}

TEST(ThreadPlan, RanksDivideTheCpusNodeByNode) {
  const CpuTopology machine = siblings_machine();
  for (const int rank : {0, 1}) {
    const ThreadPlan plan = plan_threads({.on_host = {rank, 2}, .on_cpus = {rank, 2}}, machine);
    EXPECT_EQ(plan.num_threads, 8);
    EXPECT_EQ(plan.nodes, Cpus{rank});
    EXPECT_FALSE(plan.crowded);
  }
  // Ranks that mpirun has bound apart have their CPUs for themselves.
  FakeMachine bound;
  bound.node(0, "0-7");
  const ThreadPlan plan =
      plan_threads({.on_host = {1, 2}, .on_cpus = {0, 1}}, bound.read({4, 5, 6, 7}));
  EXPECT_EQ(plan.cpus, (Cpus{4, 5, 6, 7}));
  // A draft shares the first target's.
  EXPECT_EQ(plan_threads({.num_threads = 4, .on_host = {2, 2}, .on_cpus = {2, 2}}, machine).cpus,
            plan_threads({.num_threads = 4, .on_host = {0, 2}, .on_cpus = {0, 2}}, machine).cpus);
}

TEST(ThreadPlan, AutoLeavesAWholeMachineOfOneNodeToTheSystem) {
  const ThreadPlan whole = plan_threads({}, plain_machine(1, 8));
  EXPECT_TRUE(whole.cpus.empty());
  EXPECT_EQ(whole.num_threads, 8);
  FakeMachine machine;
  machine.node(0, "0-7");
  EXPECT_EQ(plan_threads({}, machine.read({2, 3, 6})).cpus, (Cpus{2, 3, 6}));
  EXPECT_TRUE(plan_threads({.cpu_bind = "none"}, siblings_machine()).cpus.empty());
  EXPECT_EQ(plan_threads({.cpu_bind = "none"}, siblings_machine()).nodes, (Cpus{0, 1}));
}

TEST(ThreadPlan, TargetsThatFillAWholeMachineAreHeldEachOnItsOwnCpus) {
  const CpuTopology machine = plain_machine(1, 4);
  for (const int rank : {0, 1}) {
    for (const int num_threads : {0, 2}) {
      const ThreadPlan plan =
          plan_threads({.num_threads = num_threads, .on_cpus = {rank, 2}}, machine);
      EXPECT_EQ(plan.cpus, (Cpus{2 * rank, 2 * rank + 1}));
      EXPECT_FALSE(plan.crowded);
    }
  }
  const auto is_left_to_the_system = [](const ThreadRequest& request, const CpuTopology& topology) {
    return plan_threads(request, topology).cpus.empty();
  };
  // A CPU to spare, given or because they do not divide evenly.
  EXPECT_TRUE(is_left_to_the_system({.num_threads = 2, .on_cpus = {0, 2}}, plain_machine(1, 5)));
  EXPECT_TRUE(is_left_to_the_system({.on_cpus = {1, 2}}, plain_machine(1, 5)));
  // Too many threads; one rank; the draft; a wish.
  EXPECT_TRUE(is_left_to_the_system({.num_threads = 3, .on_cpus = {0, 2}}, machine));
  EXPECT_TRUE(is_left_to_the_system({.num_threads = 4, .on_cpus = {0, 1}}, machine));
  EXPECT_TRUE(is_left_to_the_system({.num_threads = 2, .on_cpus = {2, 2}}, machine));
  EXPECT_TRUE(is_left_to_the_system({.cpu_bind = "none", .on_cpus = {0, 2}}, machine));
}

// Four cores of two CPUs each: no two ranks on one core.
TEST(ThreadPlan, TargetsThatFillAWholeMachineDivideItsCores) {
  FakeMachine fake;
  fake.node(0, "0-7");
  for (int c = 0; c < 8; ++c) {
    fake.write("cpu/cpu" + std::to_string(c) + "/topology/thread_siblings_list",
               std::to_string(c % 4) + "," + std::to_string(c % 4 + 4));
  }
  const CpuTopology machine = fake.read(cpus_below(8));
  EXPECT_EQ(plan_threads({.on_cpus = {0, 2}}, machine).cpus, (Cpus{0, 4, 1, 5}));
  EXPECT_EQ(plan_threads({.on_cpus = {1, 2}}, machine).cpus, (Cpus{2, 6, 3, 7}));
  // A thread a core: half of the CPUs are to spare.
  EXPECT_TRUE(plan_threads({.num_threads = 2, .on_cpus = {0, 2}}, machine).cpus.empty());
}

TEST(ThreadPlan, MoreThreadsThanCpusAreCrowded) {
  const CpuTopology machine = plain_machine(1, 2);
  EXPECT_FALSE(plan_threads({.num_threads = 2}, machine).crowded);
  EXPECT_FALSE(plan_threads({.num_threads = 1, .on_cpus = {0, 2}}, machine).crowded);
  EXPECT_TRUE(plan_threads({.num_threads = 3}, machine).crowded);
  EXPECT_TRUE(plan_threads({.num_threads = 2, .on_cpus = {0, 2}}, machine).crowded);
  const ThreadPlan plan = plan_threads({.num_threads = 5, .on_cpus = {0, 2}}, plain_machine(2, 4));
  EXPECT_TRUE(plan.crowded);
  EXPECT_TRUE(plan.cpus.empty());
  EXPECT_EQ(plan_threads({.on_cpus = {3, 5}}, machine).num_threads, 1);
}

TEST(ThreadPlan, ADraftThatTakesTurnsGetsTheThreadsOfAllTargets) {
  const auto threads = [](int num_threads, int num_targets, const CpuTopology& machine) {
    return plan_threads({.num_threads = num_threads,
                         .on_host = {num_targets, num_targets},
                         .on_cpus = {num_targets, num_targets},
                         .takes_turns = true},
                        machine);
  };
  EXPECT_EQ(threads(1, 2, plain_machine(1, 2)).num_threads, 2);
  EXPECT_EQ(threads(0, 2, plain_machine(1, 2)).num_threads, 2);
  EXPECT_EQ(threads(0, 3, plain_machine(1, 8)).num_threads, 2) << "two CPUs are to spare";
  EXPECT_EQ(threads(0, 4, plain_machine(1, 8)).num_threads, 8);
  EXPECT_EQ(threads(2, 3, plain_machine(1, 4)).num_threads, 4) << "no more than CPUs";
  EXPECT_EQ(threads(0, 1, plain_machine(1, 2)).num_threads, 2);
  EXPECT_FALSE(threads(1, 2, plain_machine(1, 2)).crowded);
  // CPUs of its own, on which it drafts asynchronously; several nodes.
  EXPECT_EQ(threads(1, 2, plain_machine(1, 3)).num_threads, 1);
  EXPECT_EQ(threads(0, 2, siblings_machine()).num_threads, 8);
}

TEST(ThreadPlan, AListIsTakenAsItStands) {
  const CpuTopology machine = plain_machine(2, 4);
  EXPECT_EQ(plan_threads({.cpu_bind = "6,1-2"}, machine).cpus, (Cpus{6, 1, 2}));
  EXPECT_EQ(plan_threads({.num_threads = 2, .cpu_bind = "6,1-2"}, machine).cpus, (Cpus{6, 1}));
  EXPECT_EQ(plan_threads({.cpu_bind = "0-5", .on_host = {1, 2}}, machine).cpus, (Cpus{3, 4, 5}));
  for (const int rank : {0, 1, 2}) {  // the last is the draft
    EXPECT_EQ(plan_threads({.cpu_bind = "0-1|4|7", .on_host = {rank, 2}}, machine).cpus,
              (std::vector<Cpus>{{0, 1}, {4}, {7}}[static_cast<size_t>(rank)]));
  }
  EXPECT_EQ(plan_threads({.cpu_bind = "3|5", .on_host = {2, 2}}, machine).cpus, Cpus{3});
}

TEST(ThreadPlan, AListThatCannotBeIsNamed) {
  FakeMachine fake;
  fake.node(0, "0-7");
  const CpuTopology machine = fake.read({0, 1, 2, 3});
  EXPECT_EQ(refusal({.cpu_bind = "2,8-9"}, machine), "cpu_bind: this host has no CPU 8");
  EXPECT_EQ(refusal({.cpu_bind = "3-4"}, machine),
            "cpu_bind: CPU 4 is not among those this process may use");
  EXPECT_EQ(refusal({.cpu_bind = "0,1|1"}, machine), "cpu_bind: CPU 1 is there twice");
  EXPECT_EQ(refusal({.cpu_bind = "0", .on_host = {0, 2}}, machine),
            "cpu_bind: 1 CPU(s) for 2 target ranks on this host");
  EXPECT_EQ(refusal({.cpu_bind = "0|1", .on_host = {0, 3}}, machine),
            "cpu_bind: 2 lists for 3 target ranks on this host");
  EXPECT_EQ(refusal({.num_threads = 3, .cpu_bind = "0-1"}, machine),
            "cpu_bind: 2 CPU(s), 0,1, for a rank of 3 threads");
  EXPECT_EQ(refusal({.cpu_bind = "all"}, machine),
            "cpu_bind: \"all\" in \"all\" is no CPU number; give auto, none or CPUs like 0-3,8");
}

// Every thread on a CPU of its own as far as there are any.
ThreadPlan pinned_plan(int num_threads) {
  ThreadPlan plan(num_threads);
  const Cpus& given = cpu::given_cpus();
  for (int t = 0; t < num_threads; ++t) {
    plan.cpus.push_back(given[static_cast<size_t>(t) % given.size()]);
  }
  return plan;
}

TEST(Pinning, HoldsEveryThreadAndLetsTheCallerGo) {
  const Cpus before = cpu::current_cpus();
  const ThreadPlan plan = pinned_plan(3);
  {
    ThreadPool pool(plan);
    std::vector<Cpus> seen(3);
    pool.run([&](int thread, int) { seen[static_cast<size_t>(thread)] = cpu::current_cpus(); });
    for (size_t t = 0; t < 3; ++t) EXPECT_EQ(seen[t], Cpus{plan.cpus[t]});
    // What the caller starts is held with it, until it says otherwise.
    Cpus inherited;
    Cpus after;
    std::thread([&] {
      inherited = cpu::current_cpus();
      leave_pinning();
      after = cpu::current_cpus();
    }).join();
    EXPECT_EQ(inherited, Cpus{plan.cpus[0]});
    EXPECT_EQ(after, cpu::given_cpus());
  }
  EXPECT_EQ(cpu::current_cpus(), before);
}

TEST(Pinning, ACpuThatIsGoneIsNoFailure) {
  const Cpus before = cpu::current_cpus();
  ThreadPlan plan(2);
  plan.cpus = {cpu::kMostCpus - 1, cpu::kMostCpus - 1};
  ThreadPool pool(plan);
  std::atomic<int> runs{0};
  pool.run([&](int, int) { ++runs; });
  EXPECT_EQ(runs.load(), 2);
  EXPECT_EQ(cpu::current_cpus(), before);
}

TEST(Pinning, ChangesNoBits) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kOut = 700;
  constexpr int64_t kIn = 513;
  const Weights weights = random_weights(kOut * kIn, DType::kBF16, 1);
  const PackedMatrix w = pack(weights, kOut, kIn);
  const std::vector<float> in = random_floats(kRows * kIn, 2);
  const auto product = [&](const ThreadPlan& plan) {
    Context ctx(plan);
    std::vector<float> out(kRows * kOut, kPoison);
    linear(ctx, out.data(), in.data(), kRows, w);
    return out;
  };
  const std::vector<float> expected = product(1);
  ThreadPlan crowded = 3;
  crowded.crowded = true;
  EXPECT_TRUE(same_bits(product(3), expected));
  EXPECT_TRUE(same_bits(product(pinned_plan(3)), expected));
  EXPECT_TRUE(same_bits(product(crowded), expected));
}

// On a machine of one node the system takes the wish or not; the memory works either way.
TEST(Pages, AreLaidOverNodesWhereTheSystemCan) {
  constexpr size_t kBytes = size_t{8} << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* bytes = static_cast<std::byte*>(memory);
  EXPECT_FALSE(cpu::lay_over_nodes(bytes, kBytes, {}));
  EXPECT_FALSE(cpu::lay_over_nodes(bytes, kBytes, Cpus{0}));
  const bool taken = cpu::lay_over_nodes(bytes, kBytes, Cpus{0, 1});
  int mode = -1;
  const long known = syscall(SYS_get_mempolicy, &mode, nullptr, 0, memory, MPOL_F_ADDR);
  if (taken && known == 0) {
    EXPECT_EQ(mode, MPOL_INTERLEAVE);
  }
  for (size_t i = 0; i < kBytes; i += 4096) bytes[i] = std::byte{1};
  munmap(memory, kBytes);
  std::printf("interleaving: %s\n", taken ? "taken" : "refused by the system");

  const Cpus nodes = {0, 1};
  for (const size_t size : {size_t{100}, kBytes + 5}) {
    const AlignedBytes spread = allocate_bytes(size, nodes);
    for (size_t i = 0; i < size; i += 61) ASSERT_EQ(spread[i], std::byte{0});
    spread[size - 1] = std::byte{1};
  }
}

}  // namespace
}  // namespace outrider::ops
