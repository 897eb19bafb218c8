// Asks the system where threads may run and pages may lie, and tells it. See thread_plan.h and
// topology.h.
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>

#include "runtime/base/log.h"
#include "runtime/ops/cpu/threads/topology.h"

namespace outrider::ops {
namespace {

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, FreeSet>;

// False when the system refuses. thread_id 0: the calling thread.
bool set_cpus(int thread_id, const std::vector<int>& cpus) {
  const int size = *std::ranges::max_element(cpus) + 1;
  const size_t bytes = CPU_ALLOC_SIZE(size);
  const CpuSet set(CPU_ALLOC(size));
  if (set == nullptr) return false;
  CPU_ZERO_S(bytes, set.get());
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set.get());
  return sched_setaffinity(thread_id, bytes, set.get()) == 0;
}

}  // namespace

namespace cpu {

std::vector<int> current_cpus() {
  std::vector<int> cpus;
  for (int size = CPU_SETSIZE; size <= kMostCpus;
       size *= 2) {  // the kernel's own set may be larger
    const size_t bytes = CPU_ALLOC_SIZE(size);
    const CpuSet set(CPU_ALLOC(size));
    if (set == nullptr || sched_getaffinity(0, bytes, set.get()) != 0) continue;
    for (int i = 0; i < size; ++i) {
      if (CPU_ISSET_S(static_cast<size_t>(i), bytes, set.get())) cpus.push_back(i);
    }
    return cpus;
  }
  const long num = sysconf(_SC_NPROCESSORS_ONLN);
  for (int i = 0; i < std::max(1L, num); ++i) cpus.push_back(i);
  return cpus;
}

bool lay_over_nodes(std::byte* begin, size_t num_bytes, std::span<const int> nodes) {
  if (nodes.size() < 2) return false;
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  const auto highest = static_cast<size_t>(*std::ranges::max_element(nodes));
  std::vector<unsigned long> mask(highest / kBits + 1, 0);
  for (const int node : nodes)
    mask[static_cast<size_t>(node) / kBits] |= 1ul << (static_cast<size_t>(node) % kBits);
  // The system call: libnuma is more than this one line needs. It wants one bit more than there
  // are.
  const long result = syscall(
      SYS_mbind, begin, num_bytes, MPOL_INTERLEAVE, mask.data(), mask.size() * kBits + 1, 0);
  if (result != 0) log_debug("pages are not laid over the memory nodes (error {})", errno);
  return result == 0;
}

const std::vector<int>& given_cpus() {
  static const std::vector<int> cpus = current_cpus();
  return cpus;
}

}  // namespace cpu

ThreadPlan plan_threads(const ThreadRequest& request) {
  return cpu::plan_threads(request, cpu::read_topology("/sys/devices/system", cpu::given_cpus()));
}

std::string describe(const ThreadPlan& plan) {
  std::string text = fmt::format("{} thread(s)", plan.num_threads);
  text += plan.cpus.empty() ? ", placed by the system"
                            : fmt::format(" on CPUs {}", fmt::join(plan.cpus, ","));
  if (plan.nodes.size() > 1) text += fmt::format(", memory nodes {}", fmt::join(plan.nodes, ","));
  if (plan.crowded) text += ", more than there are CPUs: they sleep instead of polling";
  return text;
}

PinnedThread::PinnedThread(const ThreadPlan& plan, int thread) {
  if (plan.cpus.empty()) return;
  cpu::given_cpus();  // before the first change
  std::vector<int> before = cpu::current_cpus();
  const int cpu = plan.cpus[static_cast<size_t>(thread)];
  if (!set_cpus(0, {cpu})) {
    log_debug("thread {} cannot be held on CPU {} (error {})", thread, cpu, errno);
    return;
  }
  before_ = std::move(before);
  thread_id_ = gettid();
}

PinnedThread::~PinnedThread() {
  // Another thread's number may belong to somebody else by now.
  if (!before_.empty() && gettid() == thread_id_) set_cpus(0, before_);
}

void leave_pinning() {
  if (!set_cpus(0, cpu::given_cpus())) log_debug("this thread stays on its CPU (error {})", errno);
}

}  // namespace outrider::ops
