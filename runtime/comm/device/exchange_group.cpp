// See exchange_group.h. The host's part: memory that all members know, and what broke off.
#include "runtime/comm/device/exchange_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <type_traits>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/group/agreed_setup.h"
#include "runtime/comm/group/broken_group.h"
#include "runtime/comm/host_id.h"
#include "runtime/comm/waiting.h"
#include "runtime/ops/gpu/exchange.h"

namespace outrider {
namespace {

using gpu::Vector4;

// What a member tells the others of itself; the same bytes for all.
struct Introduction {
  uint64_t process = 0;  // drawn at random
  HostId host{};
  uint64_t address = 0;  // of its exchange memory, for members of the same process
  uint64_t ordinal = 0;
  gpu::MemoryHandle handle{};
};

uint64_t this_process() {
  static const uint64_t drawn = std::random_device()() | uint64_t{std::random_device()()} << 32;
  return drawn;
}

class ExchangeGroup final : public DeviceGroup {
 public:
  ExchangeGroup(gpu::Device& device,
                const gpu::Backend& backend,
                TargetGroup& over_host,
                const ExchangeOptions& options)
      : DeviceGroup(backend.ops), device_(device), peers_(backend.peers), options_(options) {
    OUTRIDER_CHECK(options.max_count > 0 && peers_.max_waiting_blocks > 0 &&
                   peers_.max_waiting_blocks <= gpu::kMaxExchangeBlocks);
    view_.rank = over_host.rank();
    view_.size = over_host.size();
    view_.slot_vectors = static_cast<uint32_t>((options.max_count + 3) / 4);
    view_.num_blocks = peers_.max_waiting_blocks;
    view_.limit_ns = static_cast<uint64_t>(options.limit_s * 1e9);
    view_.sums_limit_ns = view_.limit_ns + view_.limit_ns / 8;
    if (view_.size > gpu::kMaxPeers) {
      throw Error(fmt::format("the exchange between GPUs is for at most {} ranks, these are {}",
                              gpu::kMaxPeers,
                              view_.size));
    }
    try {
      introduce(over_host);
    } catch (...) {
      close_peers();
      throw;
    }
  }
  ~ExchangeGroup() override {
    // Launches under way end before their memory goes.
    std::atomic_ref(report()->stop).store(1);
    device_.wait();
    close_peers();
  }
  ExchangeGroup(const ExchangeGroup&) = delete;
  ExchangeGroup& operator=(const ExchangeGroup&) = delete;

  int rank() const override { return view_.rank; }
  int size() const override { return view_.size; }
  std::string name() const override { return "exchange"; }
  size_t num_bytes() const override { return memory_.num_bytes() + state_.num_bytes(); }
  bool is_capturable() const override { return true; }

  void all_reduce_sum(gpu::Stream& stream, float* values, size_t count, Fold fold) override {
    OUTRIDER_CHECK(reinterpret_cast<uintptr_t>(values) % sizeof(Vector4) == 0);
    const size_t most = size_t{view_.slot_vectors} * 4;
    for (size_t at = 0; at < count; at += most) {
      const size_t piece = std::min(most, count - at);
      ops_.exchange_sum(
          stream, {.view = view_, .kind = kind_of(fold), .values = values + at, .count = piece});
    }
  }

  void sum_and_norm(gpu::Stream& stream, const SumAndNorm& args) override {
    const auto n = static_cast<size_t>(args.norm.out.n);
    const size_t count = static_cast<size_t>(args.norm.max_rows) * n;
    if (n % 4 != 0 || count > size_t{view_.slot_vectors} * 4) {
      return DeviceGroup::sum_and_norm(stream, args);
    }
    gpu::ExchangeKind kind = kind_of(args.fold);
    kind.next = args.next;
    kind.next_bytes = std::min(args.next_bytes, most_prefetched_);
    ops_.exchange_norm(stream, {.view = view_, .kind = kind, .norm = args.norm, .part = args.part});
  }

  void wait(gpu::Stream& stream) override {
    if (options_.check_alive) wait_watching(stream);
    on_gpu([&] { stream.wait(); });
    if (std::atomic_ref(report()->is_broken).load() == 0) return;
    const auto late_of = [&](const uint32_t(&late)[gpu::kMaxPeers]) {
      std::string ranks;
      for (int r = 0; r < size(); ++r) {
        if (late[r] == 0) continue;
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(options_.first_rank + r);
      }
      return ranks;
    };
    throw_name_of_dead(options_.check_alive);
    std::string late = late_of(report()->is_part_late);
    if (late.empty()) late = late_of(report()->are_sums_late);
    throw Error(fmt::format("the exchange between GPUs broke off: rank {} waited {} s for rank {}",
                            options_.first_rank + rank(),
                            options_.limit_s,
                            late));
  }

 private:
  gpu::ExchangeKind kind_of(Fold fold) const {
    gpu::ExchangeKind kind = {.in_tree = fold == Fold::kTree};
    if (size() > 2) {
      kind.two_shot_vectors =
          static_cast<uint32_t>((options_.two_shot_bytes + sizeof(Vector4) - 1) / sizeof(Vector4));
    }
    return kind;
  }
  // A GPU may fail because memory that it wrote into went with the rank that owned it.
  template <typename Call>
  std::invoke_result_t<Call> on_gpu(const Call& call) const {
    try {
      return call();
    } catch (const Error&) {
      throw_name_of_dead(options_.check_alive);
      throw;
    }
  }
  // A rank that is known to be gone is not waited for until the limit: the launches give up.
  void wait_watching(gpu::Stream& stream) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kBetweenChecks{1};
    for (auto next = Clock::now() + kBetweenChecks; !on_gpu([&] { return stream.is_done(); });
         Backoff::relax()) {
      if (Clock::now() < next) continue;
      next = Clock::now() + kBetweenChecks;
      try {
        options_.check_alive();
      } catch (const Error&) {
        std::atomic_ref(report()->stop).store(1);
        on_gpu([&] { stream.wait(); });
        throw;
      }
    }
  }

  gpu::ExchangeReport* report() const { return report_.as<gpu::ExchangeReport>(); }

  void introduce(TargetGroup& over_host) {
    Introduction mine = {.process = this_process(),
                         .host = this_host(),
                         .ordinal = static_cast<uint64_t>(device_.info().ordinal)};
    const std::string what = "the exchange between GPUs cannot be set up";
    set_up_together(over_host, what, [&] {
      allocate();
      mine.address = reinterpret_cast<uint64_t>(memory_.data());
      mine.handle = peers_.share(device_, memory_.data());
    });
    const auto members = gather_values(over_host, mine);
    set_up_together(over_host, what, [&] {
      for (int r = 0; r < size(); ++r) open_peer(r, members[static_cast<size_t>(r)], mine);
    });
  }

  void allocate() {
    const size_t num_vectors = gpu::exchange_memory_vectors(view_.size, view_.slot_vectors);
    memory_ = gpu::Buffer(device_, num_vectors * sizeof(Vector4));
    constexpr uint32_t kWord = gpu::kEmptyWord;
    const std::vector<Vector4> empty(std::min<size_t>(num_vectors, size_t{1} << 20),
                                     {kWord, kWord, kWord, kWord});
    for (size_t at = 0; at < num_vectors; at += empty.size()) {
      const size_t piece = std::min(empty.size(), num_vectors - at);
      device_.upload_now(memory_.as<Vector4>() + at, empty.data(), piece * sizeof(Vector4));
    }
    state_ = gpu::Buffer(device_, sizeof(gpu::ExchangeState));
    const gpu::ExchangeState first;
    device_.upload_now(state_.data(), &first, sizeof first);
    report_ = gpu::PinnedBuffer(device_, sizeof(gpu::ExchangeReport));
    view_.state = state_.as<gpu::ExchangeState>();
    view_.report = report();
  }

  void open_peer(int r, const Introduction& peer, const Introduction& mine) {
    Vector4*& memory = view_.memory[r];
    if (peer.process == mine.process) {
      if (r != rank() && peer.ordinal == mine.ordinal) view_.shares_device = true;
      if (peer.ordinal != mine.ordinal) peers_.reach(device_, static_cast<int>(peer.ordinal));
      memory = reinterpret_cast<Vector4*>(peer.address);
      return;
    }
    if (peer.host != mine.host) {
      throw Error(fmt::format("rank {} is on another host, whose memory no GPU here reaches", r));
    }
    memory = static_cast<Vector4*>(peers_.open(device_, peer.handle));
    opened_.push_back(memory);
  }

  void close_peers() noexcept {
    for (Vector4* memory : opened_) peers_.close(device_, memory);
    opened_.clear();
  }

  gpu::Device& device_;
  const gpu::PeerMemory& peers_;
  const ExchangeOptions options_;
  // Of what follows a sum: what a wait has time for, and the cache beside the ranks' words.
  const size_t most_prefetched_ = std::min(size_t{16} << 20, device_.info().l2_bytes / 4);
  gpu::ExchangeView view_;
  gpu::Buffer memory_;
  gpu::Buffer state_;
  gpu::PinnedBuffer report_;
  std::vector<Vector4*> opened_;
};

}  // namespace

std::unique_ptr<DeviceGroup> make_exchange_group(gpu::Device& device,
                                                 const gpu::Backend& backend,
                                                 TargetGroup& over_host,
                                                 const ExchangeOptions& options) {
  return std::make_unique<ExchangeGroup>(device, backend, over_host, options);
}

}  // namespace outrider
