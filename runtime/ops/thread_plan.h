// How one rank's threads run: how many, on which CPUs, which memory nodes what they share is spread
// over, and whether they may poll. Made once per rank at start (runtime/ranks/job/) and given to
// the context and to the loader, so that thread t of both is on the same CPU and weights lie where
// they are read (first touch). Results never depend on it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace outrider::ops {

struct ThreadPlan {
  // Threads left to the system. Implicit: most callers know only a number.
  ThreadPlan(int num) : num_threads(num) {}

  int num_threads;
  std::vector<int> cpus;   // thread t runs on cpus[t]; empty: the system decides
  std::vector<int> nodes;  // that the threads may run on, ascending; fewer than two: no choice
  // More threads than CPUs, counting the other ranks': who waits sleeps at once, since polling
  // would hold up those it waits for.
  bool crowded = false;
};

// Which of several ranks this one is. A draft is beside them: its index is their number.
struct RankShare {
  int index = 0;
  int count = 1;
};

struct ThreadRequest {
  int num_threads = 0;            // 0: as many as the rank's share has CPUs
  std::string cpu_bind = "auto";  // docs/config.md
  RankShare on_host;              // among the target ranks of this host
  RankShare on_cpus;              // among those of them that were given the same CPUs
  // A draft that works while the targets wait. Where they leave it no CPUs of its own, and all lie
  // in one node, it gets the threads of all of them.
  bool takes_turns = false;
};

// For this machine. Throws Error naming what is wrong with cpu_bind.
ThreadPlan plan_threads(const ThreadRequest& request);

// "2 threads on CPUs 0,1" or "2 threads, placed by the system".
std::string describe(const ThreadPlan& plan);

// Holds the calling thread on cpus[thread] while it lives; does nothing for a plan without CPUs. A
// CPU that is gone meanwhile costs a debug line.
class PinnedThread {
 public:
  PinnedThread(const ThreadPlan& plan, int thread);
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  std::vector<int> before_;  // empty: nothing to put back
  int thread_id_ = 0;
};

// For threads started by a pinned one, whose CPU they inherit: may run again wherever the process
// was let when it first asked.
void leave_pinning();

}  // namespace outrider::ops
