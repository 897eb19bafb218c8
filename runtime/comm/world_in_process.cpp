// The world as threads of one process: the embedded default, and the test double of the MPI form.
// Mailboxes are queues under one mutex per pair; the target group meets at a barrier and folds in
// the order that the MPI form folds in, so its sums have the same bits.
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/base/fold_tree.h"
#include "runtime/comm/waiting.h"
#include "runtime/comm/world.h"

namespace outrider {
namespace {

struct Mailbox {
  std::mutex mutex;
  std::deque<Bytes> messages;
  size_t num_bytes = 0;
};

// What the threads share. Lives until all of them have returned.
struct Shared {
  explicit Shared(int ranks)
      : num_ranks(ranks), mailboxes(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)) {}

  const int num_ranks;
  std::vector<Mailbox> mailboxes;
  std::atomic<bool> aborted{false};
  std::mutex abort_mutex;
  std::string abort_reason;

  // The target group's meeting point: each member shows where its data lies, then all read.
  std::atomic<int> num_arrived{0};
  std::atomic<uint64_t> generation{0};
  std::vector<const void*> shown = std::vector<const void*>(static_cast<size_t>(num_ranks));

  Mailbox& mailbox(int from, int to) {
    return mailboxes[static_cast<size_t>(from) * static_cast<size_t>(num_ranks) +
                     static_cast<size_t>(to)];
  }
  void set_aborted(const std::string& reason) {
    std::lock_guard lock(abort_mutex);
    if (!aborted.exchange(true)) abort_reason = reason;
  }
  void throw_if_aborted() {
    if (!aborted.load(std::memory_order_acquire)) return;
    std::lock_guard lock(abort_mutex);
    throw Error(abort_reason);
  }
};

class ThreadGroup final : public TargetGroup {
 public:
  ThreadGroup(Shared& shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce_sum(std::span<float> values, Fold order) override {
    if (order == Fold::kTree) {
      fold_tree(values);
    } else {
      fold(values, [](float a, float b) { return a + b; });
    }
  }
  void all_reduce_sum(std::span<uint64_t> values) override {
    fold(values, [](uint64_t a, uint64_t b) { return a + b; });
  }
  void all_reduce_max(std::span<uint64_t> values) override {
    fold(values, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    OUTRIDER_CHECK(all.size() == mine.size() * static_cast<size_t>(size_));
    show(mine.data());
    for (int r = 0; r < size_; ++r) {
      const auto* from = static_cast<const std::byte*>(shared_.shown[static_cast<size_t>(r)]);
      std::copy(from, from + mine.size(), all.begin() + static_cast<ptrdiff_t>(mine.size()) * r);
    }
    barrier();
  }

 private:
  template <typename T, typename Op>
  void fold(std::span<T> values, Op op) {
    // A copy is shown, not the values themselves: members finish reading at different times.
    std::vector<T>& copy = scratch<T>();
    copy.assign(values.begin(), values.end());
    show(copy.data());
    for (int r = 0; r < size_; ++r) {
      const T* from = static_cast<const T*>(shared_.shown[static_cast<size_t>(r)]);
      if (r == 0) {
        std::copy(from, from + values.size(), values.begin());
      } else {
        for (size_t i = 0; i < values.size(); ++i) values[i] = op(values[i], from[i]);
      }
    }
    barrier();
  }
  // Others read what is shown, so the tree works on copies, a cache's worth at a time.
  void fold_tree(std::span<float> values) {
    constexpr size_t kMostLeaf = 1024;
    floats_.assign(values.begin(), values.end());
    show(floats_.data());
    const auto num_leaves = static_cast<size_t>(size_);
    leaves_.resize(num_leaves * kMostLeaf);
    for (size_t begin = 0; begin < values.size(); begin += kMostLeaf) {
      const size_t count = std::min(kMostLeaf, values.size() - begin);
      for (size_t r = 0; r < num_leaves; ++r) {
        std::copy_n(
            static_cast<const float*>(shared_.shown[r]) + begin, count, leaves_.data() + r * count);
      }
      fold_in_tree(leaves_.data(), num_leaves, count);
      std::copy_n(leaves_.data(), count, values.data() + begin);
    }
    barrier();
  }
  template <typename T>
  std::vector<T>& scratch() {
    if constexpr (std::is_same_v<T, float>) {
      return floats_;
    } else {
      return integers_;
    }
  }
  void show(const void* data) {
    shared_.shown[static_cast<size_t>(rank_)] = data;
    barrier();
  }
  void barrier() {
    const uint64_t generation = shared_.generation.load(std::memory_order_acquire);
    if (shared_.num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      shared_.num_arrived.store(0, std::memory_order_relaxed);
      shared_.generation.fetch_add(1, std::memory_order_release);
      return;
    }
    Backoff backoff;
    while (shared_.generation.load(std::memory_order_acquire) == generation) {
      if (backoff.should_check()) shared_.throw_if_aborted();
      backoff.pause();
    }
  }

  Shared& shared_;
  const int rank_;
  const int size_;
  std::vector<float> floats_;
  std::vector<float> leaves_;
  std::vector<uint64_t> integers_;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return shared_.num_ranks; }
  std::string host() const override { return "this process"; }
  int num_ranks_here(int num_ranks) const override { return num_ranks; }

  void post(int to, Bytes message) override {
    Mailbox& box = shared_.mailbox(rank_, to);
    std::lock_guard lock(box.mutex);
    box.num_bytes += message.size();
    box.messages.push_back(std::move(message));
  }
  std::optional<Bytes> poll(int from) override {
    Mailbox& box = shared_.mailbox(from, rank_);
    std::lock_guard lock(box.mutex);
    if (box.messages.empty()) return std::nullopt;
    Bytes message = std::move(box.messages.front());
    box.messages.pop_front();
    box.num_bytes -= message.size();
    return message;
  }
  size_t num_unsent_bytes(int to) override {
    Mailbox& box = shared_.mailbox(rank_, to);
    std::lock_guard lock(box.mutex);
    return box.num_bytes;
  }
  [[noreturn]] void abort(const std::string& reason) override {
    shared_.set_aborted(reason);
    throw Error(reason);
  }
  void check_alive(int) override { shared_.throw_if_aborted(); }
  std::unique_ptr<TargetGroup> make_target_group(int num_ranks) override {
    OUTRIDER_CHECK(rank_ < num_ranks && num_ranks <= shared_.num_ranks);
    if (num_ranks == 1) return make_solo_group();
    return std::make_unique<ThreadGroup>(shared_, rank_, num_ranks);
  }
  void end_unresponsive(int) override {}
  void finish(int) override {}

 private:
  Shared& shared_;
  const int rank_;
};

}  // namespace

void run_in_process(int num_ranks, const std::function<void(World&)>& body) {
  Shared shared(num_ranks);
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto run_rank = [&](int rank) {
    try {
      ThreadWorld world(shared, rank);
      body(world);
    } catch (const std::exception& error) {
      {
        std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
      }
      shared.set_aborted(error.what());
    }
  };
  // Rank 0 runs on the caller's thread: it holds the coordinator and meets the signals.
  std::vector<std::thread> threads;
  for (int rank = 1; rank < num_ranks; ++rank) threads.emplace_back(run_rank, rank);
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace outrider
