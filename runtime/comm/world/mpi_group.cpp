// The target group over MPI: a direct exchange of partial sums, folded by every member in the same
// order. Point to point instead of MPI_Allreduce for two reasons: MPI may fold in another order on
// each member, and a collective cannot be left when a member dies.
#include "runtime/base/error.h"
#include "runtime/base/numbers/fold_tree.h"
#include "runtime/comm/world/mpi_internal.h"

namespace outrider::mpi {
namespace {

// Up to here every member gets everything from everyone (one hop); above, each folds a slice and
// shares it (two hops, but each byte crosses a link only twice).
constexpr size_t kDirectBytes = 32 * 1024;

// A fold of slots [num_slots, count] into slot 0: slot 0 op slot 1 op ...
template <typename Op>
auto in_rank_order(Op op) {
  return [op](auto* slots, size_t num_slots, size_t count) {
    for (size_t r = 1; r < num_slots; ++r) {
      for (size_t i = 0; i < count; ++i) slots[i] = op(slots[i], slots[r * count + i]);
    }
  };
}

class MpiGroup final : public TargetGroup {
 public:
  MpiGroup(int rank, int size, const GroupWaits& waits) : rank_(rank), size_(size), waits_(waits) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce_sum(std::span<float> values, Fold fold) override {
    if (fold == Fold::kTree) {
      reduce(values, [](float* slots, size_t num_slots, size_t count) {
        fold_in_tree(slots, num_slots, count);
      });
    } else {
      reduce(values, in_rank_order([](float a, float b) { return a + b; }));
    }
  }
  void all_reduce_sum(std::span<uint64_t> values) override {
    reduce(values, in_rank_order([](uint64_t a, uint64_t b) { return a + b; }));
  }
  void all_reduce_max(std::span<uint64_t> values) override {
    reduce(values, in_rank_order([](uint64_t a, uint64_t b) { return a > b ? a : b; }));
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    OUTRIDER_CHECK(all.size() == mine.size() * static_cast<size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      std::byte* slot = all.data() + mine.size() * static_cast<size_t>(peer);
      if (peer == rank_) {
        std::copy(mine.begin(), mine.end(), slot);
      } else {
        start_receive(slot, mine.size(), peer);
      }
    }
    send_to_all(mine.data(), mine.size());
    finish();
  }

 private:
  // fold_slots(slots, num_slots, count) leaves the result in slot 0.
  template <typename T, typename FoldSlots>
  void reduce(std::span<T> values, FoldSlots fold_slots) {
    if (values.empty()) return;
    if (size_ == 2 || values.size_bytes() <= kDirectBytes) {
      reduce_direct(values, fold_slots);
    } else {
      reduce_by_slices(values, fold_slots);
    }
  }

  template <typename T, typename FoldSlots>
  void reduce_direct(std::span<T> values, FoldSlots fold_slots) {
    const size_t num_bytes = values.size_bytes();
    std::byte* slots = scratch(num_bytes * static_cast<size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_)
        start_receive(slots + num_bytes * static_cast<size_t>(peer), num_bytes, peer);
    }
    std::byte* own = slots + num_bytes * static_cast<size_t>(rank_);
    std::copy_n(reinterpret_cast<const std::byte*>(values.data()), num_bytes, own);
    send_to_all(own, num_bytes);
    finish();
    fold(values, slots, fold_slots);
  }

  template <typename T, typename FoldSlots>
  void reduce_by_slices(std::span<T> values, FoldSlots fold_slots) {
    const auto slice = [&](int r) {
      const size_t begin = values.size() * static_cast<size_t>(r) / static_cast<size_t>(size_);
      const size_t end = values.size() * static_cast<size_t>(r + 1) / static_cast<size_t>(size_);
      return values.subspan(begin, end - begin);
    };
    const std::span<T> mine = slice(rank_);
    std::byte* slots = scratch(mine.size_bytes() * static_cast<size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      std::byte* slot = slots + mine.size_bytes() * static_cast<size_t>(peer);
      if (peer == rank_) {
        std::copy_n(reinterpret_cast<const std::byte*>(mine.data()), mine.size_bytes(), slot);
      } else {
        start_receive(slot, mine.size_bytes(), peer);
        start_send(slice(peer).data(), slice(peer).size_bytes(), peer);
      }
    }
    finish();
    fold(mine, slots, fold_slots);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) start_receive(slice(peer).data(), slice(peer).size_bytes(), peer);
    }
    send_to_all(mine.data(), mine.size_bytes());
    finish();
  }

  template <typename T, typename FoldSlots>
  void fold(std::span<T> values, std::byte* slots, FoldSlots fold_slots) {
    T* const typed = reinterpret_cast<T*>(slots);
    fold_slots(typed, static_cast<size_t>(size_), values.size());
    std::copy_n(typed, values.size(), values.begin());
  }

  void start_receive(void* to, size_t num_bytes, int peer) {
    MPI_Request request;
    check(MPI_Irecv(
              to, static_cast<int>(num_bytes), MPI_BYTE, peer, kGroupTag, MPI_COMM_WORLD, &request),
          "MPI_Irecv");
    requests_.push_back(request);
  }
  void start_send(const void* from, size_t num_bytes, int peer) {
    MPI_Request request;
    check(
        MPI_Isend(
            from, static_cast<int>(num_bytes), MPI_BYTE, peer, kGroupTag, MPI_COMM_WORLD, &request),
        "MPI_Isend");
    requests_.push_back(request);
  }
  void send_to_all(const void* from, size_t num_bytes) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) start_send(from, num_bytes, peer);
    }
  }
  void finish() {
    wait_all(requests_, waits_);
    requests_.clear();
  }

  // Grows to the largest exchange and stays; of u64 so that every element type is aligned.
  std::byte* scratch(size_t num_bytes) {
    if (scratch_.size() * sizeof(uint64_t) < num_bytes) scratch_.resize((num_bytes + 7) / 8);
    return reinterpret_cast<std::byte*>(scratch_.data());
  }

  const int rank_;
  const int size_;
  const GroupWaits waits_;
  std::vector<MPI_Request> requests_;
  std::vector<uint64_t> scratch_;
};

}  // namespace

std::unique_ptr<TargetGroup> make_group(int rank, int num_ranks, const GroupWaits& waits) {
  return std::make_unique<MpiGroup>(rank, num_ranks, waits);
}

}  // namespace outrider::mpi
