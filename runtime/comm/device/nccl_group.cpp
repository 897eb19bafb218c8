// See nccl_group.h.
#include "runtime/comm/device/nccl_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/device/nccl_library.h"
#include "runtime/comm/group/agreed_setup.h"
#include "runtime/comm/group/broken_group.h"
#include "runtime/ops/gpu/exchange.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

// Looks after a communicator while the thread that uses it waits for the GPU.
class Watch {
 public:
  Watch(NcclComm& comm, double limit_s)
      : comm_(comm), limit_s_(limit_s), thread_([this] { run(); }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void begin() {
    const std::lock_guard lock(mutex_);
    end_ = Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s_));
    // Who sleeps looks again soon enough: no notification on the path of every step.
  }
  // What went wrong, or empty.
  std::string end() {
    const std::lock_guard lock(mutex_);
    end_.reset();
    return problem_;
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{100};

  void run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kInterval, [this] { return is_over_; })) {
      if (!end_.has_value() || !problem_.empty()) continue;
      problem_ = comm_.error();
      if (problem_.empty() && Clock::now() >= *end_) {
        problem_ = fmt::format("the other ranks' GPUs did not answer within {} s", limit_s_);
      }
      if (!problem_.empty()) comm_.abort();
    }
  }

  NcclComm& comm_;
  const double limit_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Clock::time_point> end_;
  std::string problem_;
  bool is_over_ = false;
  std::thread thread_;
};

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(gpu::Device& device,
            const gpu::Backend& backend,
            TargetGroup& over_host,
            const NcclOptions& options)
      : DeviceGroup(backend.ops),
        backend_(backend),
        rank_(over_host.rank()),
        size_(over_host.size()),
        options_(options) {
    OUTRIDER_CHECK(options.max_count > 0);
    NcclId id{};
    const std::string what = "NCCL cannot be used";
    set_up_together(over_host, what, [&] {
      library_ = &NcclLibrary::load(options.library);
      if (rank_ == 0) id = library_->make_id();
      parts_ = gpu::Buffer(device, static_cast<size_t>(size_) * options.max_count * sizeof(float));
    });
    const auto ids = gather_values(over_host, id);
    const auto versions = gather_values(over_host, version_of(*library_));
    set_up_together(over_host, what, [&] {
      if (versions[0] != version_of(*library_)) {
        throw Error(
            fmt::format("it has NCCL {}, rank 0 has {}", library_->version(), versions[0].data()));
      }
    });
    set_up_together(over_host, what, [&] {
      device.info();  // makes it this thread's GPU
      comm_.emplace(*library_,
                    ids[0],
                    rank_,
                    size_,
                    NcclComm::Limits{std::chrono::duration<double>(options.init_limit_s),
                                     options.check_alive});
      comm_->limit_calls_to(std::chrono::duration<double>(options.limit_s));
    });
    watch_.emplace(*comm_, options.limit_s);
    if (rank_ == 0) log_info("NCCL {} with {}", library_->version(), nccl_settings());
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "nccl " + library_->version(); }
  size_t num_bytes() const override { return parts_.num_bytes(); }
  bool is_capturable() const override { return true; }

  void all_reduce_sum(gpu::Stream& stream, float* values, size_t count, Fold fold) override {
    void* const native = backend_.native_stream(stream);
    if (fold == Fold::kRankOrder) {
      guarded([&] { comm_->all_reduce_sum(values, count, native); });
      return;
    }
    for (size_t at = 0; at < count; at += options_.max_count) {
      const size_t piece = std::min(options_.max_count, count - at);
      guarded([&] { comm_->all_gather(values + at, parts_.as<float>(), piece, native); });
      ops_.fold_parts(
          stream,
          {.parts = parts_.as<float>(), .num_parts = size_, .out = values + at, .count = piece});
    }
  }

  void wait(gpu::Stream& stream) override {
    watch_->begin();
    std::string failure;
    try {
      stream.wait();
    } catch (const Error& error) {
      failure = error.what();
    }
    const std::string problem = watch_->end();
    if (!problem.empty()) give_up(fmt::format("NCCL: {}", problem));
    if (failure.empty()) return;
    // The GPU may have failed because a rank is gone, a moment before the watch would know.
    throw_name_of_dead(options_.check_alive);
    throw Error(failure);
  }

 private:
  static std::array<char, 16> version_of(const NcclLibrary& library) {
    std::array<char, 16> text{};
    library.version().copy(text.data(), text.size() - 1);
    return text;
  }

  template <typename Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      give_up(error.what());
    }
  }

  [[noreturn]] void give_up(const std::string& problem) {
    comm_->abort();
    throw_name_of_dead(options_.check_alive);
    throw Error(problem);
  }

  const gpu::Backend& backend_;
  const int rank_;
  const int size_;
  const NcclOptions options_;
  const NcclLibrary* library_ = nullptr;
  gpu::Buffer parts_;  // [size, max_count], for sums in a tree
  std::optional<NcclComm> comm_;
  std::optional<Watch> watch_;
};

}  // namespace

std::unique_ptr<DeviceGroup> make_nccl_group(gpu::Device& device,
                                             const gpu::Backend& backend,
                                             TargetGroup& over_host,
                                             const NcclOptions& options) {
  return std::make_unique<NcclGroup>(device, backend, over_host, options);
}

}  // namespace outrider
