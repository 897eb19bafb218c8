// See shared_group.h.
#include "runtime/comm/group/shared_group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "runtime/base/log.h"
#include "runtime/comm/group/arena_group.h"

namespace outrider {
namespace {

constexpr size_t kHeaderBytes = 4096;  // a page before the arena, for the token

// A file without a name, closed with the object; the mapping outlives it.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

class SharedGroup final : public TargetGroup {
 public:
  SharedGroup(std::unique_ptr<TargetGroup> over_messages, const GroupWaits& waits)
      : over_messages_(std::move(over_messages)),
        waits_(waits),
        num_bytes_(kHeaderBytes + arena_bytes(over_messages_->size())) {}
  ~SharedGroup() override {
    if (memory_ != nullptr) munmap(memory_, num_bytes_);
  }
  int rank() const override { return over_messages_->rank(); }
  int size() const override { return over_messages_->size(); }

  void all_reduce_sum(std::span<float> values, Fold fold) override {
    group().all_reduce_sum(values, fold);
  }
  void all_reduce_sum(std::span<uint64_t> values) override { group().all_reduce_sum(values); }
  void all_reduce_max(std::span<uint64_t> values) override { group().all_reduce_max(values); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    group().all_gather(mine, all);
  }

 private:
  // Where rank 0's memory is found, and what lies at its beginning: a file of that name may be
  // another process's, where process numbers have several meanings.
  struct Offer {
    uint64_t pid = 0;
    uint64_t descriptor = 0;
    uint64_t token = 0;
  };

  TargetGroup& group() {
    if (!is_set_up_) set_up();
    return arena_ != nullptr ? *arena_ : *over_messages_;
  }

  void set_up() {
    is_set_up_ = true;
    const Descriptor own(rank() == 0 ? memfd_create("outrider", MFD_CLOEXEC) : -1);
    Offer offer = rank() == 0 ? make_offer(own) : Offer{};
    std::array<uint64_t, 3> words = {offer.pid, offer.descriptor, offer.token};
    over_messages_->all_reduce_sum(words);  // the others give zeros
    offer = {words[0], words[1], words[2]};
    if (rank() != 0) accept(offer);
    std::array<uint64_t, 1> num_without = {memory_ == nullptr ? 1u : 0u};
    over_messages_->all_reduce_sum(num_without);  // nobody needs the descriptor after it
    if (num_without[0] > 0) {
      if (rank() == 0)
        log_info("the target ranks of this host cannot share memory; they send messages");
      return;
    }
    arena_ = make_arena_group({.rank = rank(),
                               .size = size(),
                               .memory = memory_ + kHeaderBytes,
                               .hot_time = waits_.hot_time,
                               .check_alive = waits_.check_alive});
  }

  Offer make_offer(const Descriptor& own) {
    if (own.get() < 0 || ftruncate(own.get(), static_cast<off_t>(num_bytes_)) != 0) return {};
    map(own);
    if (memory_ == nullptr) return {};
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    const Offer offer = {.pid = static_cast<uint64_t>(getpid()),
                         .descriptor = static_cast<uint64_t>(own.get()),
                         .token = static_cast<uint64_t>(now) | 1};
    std::memcpy(memory_, &offer, sizeof(offer));
    return offer;
  }

  void accept(const Offer& offer) {
    if (offer.token == 0) return;
    const std::string path = fmt::format("/proc/{}/fd/{}", offer.pid, offer.descriptor);
    const Descriptor theirs(open(path.c_str(), O_RDWR | O_CLOEXEC));
    const off_t size = theirs.get() < 0 ? 0 : lseek(theirs.get(), 0, SEEK_END);
    if (size != static_cast<off_t>(num_bytes_)) return;
    map(theirs);
    if (memory_ == nullptr || std::memcmp(memory_, &offer, sizeof(offer)) == 0) return;
    munmap(memory_, num_bytes_);
    memory_ = nullptr;
  }

  void map(const Descriptor& file) {
    void* const at = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (at != MAP_FAILED) memory_ = static_cast<std::byte*>(at);
  }

  const std::unique_ptr<TargetGroup> over_messages_;
  const GroupWaits waits_;
  const size_t num_bytes_;
  bool is_set_up_ = false;
  std::byte* memory_ = nullptr;
  std::unique_ptr<TargetGroup> arena_;
};

}  // namespace

bool may_share_memory() {
  // A user who tells Open MPI not to use it means us, too.
  const char* const transports = std::getenv("OMPI_MCA_btl");
  if (transports == nullptr) return true;
  std::string_view list = transports;
  const bool excludes = list.starts_with('^');
  if (excludes) list.remove_prefix(1);
  bool names_it = false;
  while (!list.empty()) {
    const std::string_view word = list.substr(0, list.find(','));
    names_it = names_it || word == "vader" || word == "sm";
    list.remove_prefix(std::min(list.size(), word.size() + 1));
  }
  return names_it != excludes;
}

std::unique_ptr<TargetGroup> make_shared_group(std::unique_ptr<TargetGroup> over_messages,
                                               const GroupWaits& waits) {
  return std::make_unique<SharedGroup>(std::move(over_messages), waits);
}

}  // namespace outrider
