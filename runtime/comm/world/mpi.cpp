// The world as MPI processes. Only the round's thread calls MPI (MPI_THREAD_FUNNELED). No call here
// waits for a peer: sends are tested, never waited for, and receives are matched first, because
// Open MPI reports nothing when a peer dies (docs/reliability.md).
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>

#include "runtime/base/log.h"
#include "runtime/comm/group/arena_group.h"
#include "runtime/comm/host_id.h"
#include "runtime/comm/waiting.h"
#include "runtime/comm/world/launcher.h"
#include "runtime/comm/world/mpi_internal.h"
#include "runtime/comm/world/mpi_library.h"
#include "runtime/comm/world/wake_up.h"
#include "runtime/comm/world/watchdog.h"
#include "runtime/comm/world/world.h"

namespace outrider {
namespace mpi {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(std::string(call) + ": " + std::string(text, static_cast<size_t>(length)));
}

void wait_all(std::vector<MPI_Request>& requests, const GroupWaits& waits) {
  Backoff backoff(waits.hot_time);
  while (true) {
    int done = 0;
    check(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    if (done != 0) return;
    if (backoff.should_check()) waits.check_alive();
    backoff.pause();
  }
}

}  // namespace mpi

namespace {

constexpr int kExitAborted = 70;
constexpr auto kPeerCheckInterval = std::chrono::milliseconds(10);
constexpr auto kFinishTimeout = std::chrono::seconds(5);
constexpr std::chrono::milliseconds kTimeToBeEnded{2000};
// From the moment that a rank is known to be lost: until rank 0 ends whatever it is in, then the
// others, as those that are told do, and at last the launcher, which takes a second for it.
constexpr std::chrono::milliseconds kTimeOfFirst{1200};
constexpr std::chrono::milliseconds kTimeOfOthers = kTimeToBeEnded;
constexpr std::chrono::milliseconds kTimeForLauncher{3250};
// Where no host is known to be cut off, it ends by itself but for defects of its own.
constexpr std::chrono::milliseconds kLongForLauncher{10000};
constexpr auto kUsualMeetingTime = std::chrono::seconds(10);
// How long one looks away at least where all others ring.
constexpr std::chrono::microseconds kLeastRungWait{2000};
// The same while messages of ours are on their way, which the others mostly take by themselves.
constexpr std::chrono::microseconds kLeastMovingWait{100};
constexpr int kTimesLongerIfRung = 4;

// glibc 2.36 declares pidfd_open() for C only.
int open_process(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

struct Peer {
  std::string host;      // its name
  bool is_here = false;  // on this host, and its process id means something here
  pid_t pid = 0;
  int pidfd = -1;    // unless is_here; also where a kernel or container refuses it
  cpu_set_t cores;   // it may run on
  std::string bell;  // empty unless is_here

  // With a pidfd also before its parent has looked: a launcher may be long in that.
  bool has_ended() const {
    if (pidfd < 0) return is_here && kill(pid, 0) != 0 && errno == ESRCH;
    pollfd process{.fd = pidfd, .events = POLLIN, .revents = 0};
    return poll(&process, 1, 0) > 0;
  }
};

struct PendingSend {
  Bytes bytes;
  MPI_Request request = MPI_REQUEST_NULL;
};

// A matched message whose bytes are still on their way.
struct PendingReceive {
  Bytes bytes;
  MPI_Request request = MPI_REQUEST_NULL;
  bool active = false;
};

// MPI's start waits for all ranks without a word; while one of these lives, rank 0 says so.
class MeetingWatch {
 public:
  // Asks for the rank before its thread begins: MPI's start changes the environment.
  MeetingWatch() {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank != nullptr && std::string_view(rank) != "0") return;
    thread_ = std::jthread([this](const std::stop_token& has_met) { watch(has_met); });
  }

 private:
  void watch(const std::stop_token& has_met) {
    std::unique_lock lock(mutex_);
    never_.wait_for(lock, has_met, kUsualMeetingTime, [] { return false; });
    if (has_met.stop_requested()) return;
    log_warning(
        "the ranks have not met within {} s: one has not started, or they cannot reach each other. "
        "Of several networks name the right one (mpirun --mca btl_tcp_if_include NETWORK --mca "
        "oob_tcp_if_include NETWORK); through a firewall fix the ports (--mca "
        "oob_tcp_dynamic_ipv4_ports, btl_tcp_port_min_v4, btl_tcp_port_range_v4, --watchdog-port): "
        "docs/cluster.md, Networks",
        kUsualMeetingTime.count());
  }

  std::mutex mutex_;
  std::condition_variable_any never_;
  std::jthread thread_;
};

class MpiWorld final : public World {
 public:
  MpiWorld(int* argc, char*** argv, const WatchOptions& watch_options) {
    const MeetingWatch watch;
    // Every wait here sleeps after a short hot phase (waiting.h), so Open MPI need not yield
    // between our looks. It must not: a yield hands the core over for whole time slices as soon as
    // anything else runs there, 4 ms and more for a sum of 1 us (what --mca mpi_yield_when_idle 1
    // asks for, and mpirun --oversubscribe by itself).
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
    int provided = 0;
    mpi::check(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    // A launcher that is killed must not leave ranks behind.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mpi::check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
               "MPI_Comm_set_errhandler");
    mpi::check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    mpi::check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    sends_.resize(static_cast<size_t>(size_));
    receives_.resize(static_cast<size_t>(size_));
    roles_ = watch_options.roles(size_);
    roles_.names.resize(static_cast<size_t>(size_), "no role");
    open_watchdog(watch_options);
    exchange_peers();
    try_bells();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host() const override { return peers_[static_cast<size_t>(rank_)].host; }

  std::string library() const override { return mpi_library_version(); }

  int num_ranks_here(int num_ranks) const override {
    int count = 0;
    for (int r = 0; r < num_ranks; ++r) count += peers_[static_cast<size_t>(r)].is_here ? 1 : 0;
    return count;
  }

  int num_ranks_on_these_cpus(int num_ranks) const override {
    const Peer& own = peers_[static_cast<size_t>(rank_)];
    int count = 0;
    for (int r = 0; r < num_ranks; ++r) {
      const Peer& peer = peers_[static_cast<size_t>(r)];
      count += peer.is_here && CPU_EQUAL(&peer.cores, &own.cores) ? 1 : 0;
    }
    return count;
  }

  void post(int to, Bytes message) override {
    drop_completed_sends(to);
    post_with_tag(to, std::move(message), mpi::kMessageTag);
  }

  std::optional<Bytes> poll(int from) override {
    PendingReceive& receive = receives_[static_cast<size_t>(from)];
    if (!receive.active && !match(from, receive)) return std::nullopt;
    int done = 0;
    mpi::check(MPI_Test(&receive.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return std::nullopt;
    receive.active = false;
    return std::move(receive.bytes);
  }

  void pause_watching(Backoff& backoff, int descriptor) override {
    backoff.pause([&](std::chrono::microseconds time, std::chrono::microseconds most) {
      const bool is_rung = all_ring_here_ && !is_moving_bytes();
      if (is_rung) time = std::max(kLeastRungWait, kTimesLongerIfRung * time);
      if (all_ring_here_) time = std::min(most, std::max(kLeastMovingWait, time));
      wake_up_.wait(time, descriptor);
      // A probe that finds nothing takes in what has come, for the next one to find.
      int flag = 0;
      MPI_Iprobe(MPI_ANY_SOURCE, mpi::kAbortTag, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    });
  }

  size_t num_unsent_bytes(int to) override {
    drop_completed_sends(to);
    size_t num_bytes = 0;
    for (const PendingSend& send : sends_[static_cast<size_t>(to)]) num_bytes += send.bytes.size();
    return num_bytes;
  }

  [[noreturn]] void abort(const std::string& reason) override {
    if (ended_by_ != EndedBy::kThisRank) {
      wait_to_be_ended(reason);
      if (ended_by_ == EndedBy::kAnother) _exit(kExitAborted);
    } else if (!is_said_) {
      log_error("{}", reason);
    }
    end_launcher_later(kLongForLauncher);
    // MPI_Abort alone leaves the other ranks running under mpirun --enable-recovery, so they are
    // told.
    const std::string text = fmt::format("rank {} ({}) ended the job: {}", rank_, host(), reason);
    for (int to = 0; to < size_; ++to) {
      if (to == rank_) continue;
      const auto* from = reinterpret_cast<const std::byte*>(text.data());
      post_with_tag(to, Bytes(from, from + text.size()), mpi::kAbortTag);
    }
    for (int i = 0; i < 200; ++i) {
      int flag = 0;
      MPI_Iprobe(MPI_ANY_SOURCE, mpi::kAbortTag, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
      Backoff::sleep_us(1000);
    }
    _exit(kExitAborted);
  }

  void check_alive(int num_ranks) override {
    int flag = 0;
    MPI_Status status;
    mpi::check(MPI_Iprobe(MPI_ANY_SOURCE, mpi::kAbortTag, MPI_COMM_WORLD, &flag, &status),
               "MPI_Iprobe");
    if (flag != 0) {
      ended_by_ = EndedBy::kAnother;
      end_reason_ = take_abort_reason(status);
      throw Error(end_reason_);
    }
    if (watchdog_) {
      if (const auto found = watchdog_->finding()) {
        end_for(*found);
        throw Error(end_reason_);
      }
    }
    const auto now = std::chrono::steady_clock::now();
    if (now - last_peer_check_ < kPeerCheckInterval) return;
    last_peer_check_ = now;
    for (int r = 0; r < num_ranks; ++r) {
      const Peer& peer = peers_[static_cast<size_t>(r)];
      if (!peer.has_ended()) continue;
      // All ranks of this host see it now; the first of them ends the job.
      for (int other = 0; other < rank_; ++other) {
        const Peer& first = peers_[static_cast<size_t>(other)];
        if (ended_by_ == EndedBy::kThisRank && first.is_here && !first.has_ended()) {
          ended_by_ = EndedBy::kFirstHere;
        }
      }
      end_reason_ =
          fmt::format("rank {} ({}, process {}) is gone{}", r, name_of(r), peer.pid, at_round(r));
      throw Error(end_reason_);
    }
  }

  std::unique_ptr<TargetGroup> make_target_group(int num_ranks) override {
    OUTRIDER_CHECK(rank_ < num_ranks && num_ranks <= size_);
    if (num_ranks == 1) return make_solo_group();
    const int num_here = num_ranks_here(num_ranks);
    const GroupWaits waits = {.hot_time = hot_time_for(num_here, num_cores_here(num_ranks)),
                              .check_alive = [this, num_ranks] { check_alive(num_ranks); }};
    auto group = mpi::make_group(rank_, num_ranks, waits);
    if (num_here < num_ranks || !may_share_memory()) return group;
    return make_shared_group(std::move(group), waits);
  }

  void note_round(uint64_t round) override {
    if (watchdog_) watchdog_->set_round(round);
  }

  void when_lost(std::function<void(const std::string&)> call) override {
    std::lock_guard lock(when_lost_mutex_);
    when_lost_ = std::move(call);
  }

  void end_unresponsive(int rank) override {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.is_here) {
      kill(peer.pid, SIGKILL);
      // A launcher that hears of it may hang, and end everybody who could end it.
      end_launcher_later(kLongForLauncher);
    } else {
      log_warning("rank {} on {} does not answer; mpirun may wait for it", rank, peer.host);
    }
  }

  void finish(int exit_code) override {
    // Open MPI 4.1.4's mpirun may crash or hang when it ends a job of which a rank is in
    // MPI_Finalize (docs/reliability.md), and with a rank that is gone that would never return.
    if (watchdog_) {
      watchdog_->leave();
      if (const auto found = watchdog_->finding()) end_for(*found);
    }
    if (!end_reason_.empty()) abort(end_reason_);
    // MPI_Finalize waits for every rank, also for one that is stopped or whose node is gone.
    std::thread([exit_code] {
      std::this_thread::sleep_for(kFinishTimeout);
      log_warning("a rank did not take part in the end of the job; leaving without it");
      end_launcher_later(kLongForLauncher);
      _exit(exit_code);
    }).detach();
    MPI_Finalize();
  }

 private:
  void open_watchdog(const WatchOptions& options) {
    if (options.timeout_s <= 0 || roles_.num_targets == 0) return;
    const char* num_here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    watchdog_.emplace(std::chrono::milliseconds(static_cast<int64_t>(1e3 * options.timeout_s)),
                      options.port > 0 ? options.port + rank_ : 0,
                      num_here != nullptr && std::atoi(num_here) == size_);
    if (!watchdog_->problem().empty())
      log_warning("nobody watches rank {}, nor does it watch: {}", rank_, watchdog_->problem());
  }

  // As soon as the ranks know each other's addresses: what comes next may hang already.
  void start_watchdog(const std::vector<WatchdogContact>& contacts) {
    if (!watchdog_) return;
    std::vector<Watchdog::Member> members;
    for (int r = 0; r < size_; ++r) {
      members.push_back({.contact = contacts[static_cast<size_t>(r)],
                         .name = name_of(r),
                         .is_here = peers_[static_cast<size_t>(r)].is_here,
                         .watch = watch_over(r),
                         .counts = r < roles_.num_targets});
    }
    watchdog_->start(rank_,
                     std::move(members),
                     {.lost = [this](const std::string& reason) { say_lost(reason); },
                      .overdue = [] { _exit(kExitAborted); },
                      .overdue_after = rank_ == 0 ? kTimeOfFirst : kTimeOfOthers});
  }

  // A draft that cannot reach the targets, which go on without it, must not end the job: mpirun
  // would end all when it hears of that. On rank 0's own host it is rank 0 that is lost.
  Watchdog::Watch watch_over(int rank) const {
    if (rank == rank_ || rank >= roles_.num_targets) return Watchdog::Watch::kNot;
    if (rank_ < roles_.num_targets) return Watchdog::Watch::kStrict;
    if (rank > 0) return Watchdog::Watch::kNot;
    return peers_[0].is_here ? Watchdog::Watch::kStrict : Watchdog::Watch::kLong;
  }

  // On the watchdog's thread, since the round's may be waiting for what never comes.
  void say_lost(const std::string& reason) {
    log_error("{}", reason);
    end_launcher_later(kTimeForLauncher);
    std::lock_guard lock(when_lost_mutex_);
    if (when_lost_) when_lost_(reason);
  }

  // One ends the job, the others wait for that: rank 0, when its clients have been told.
  void end_for(const Watchdog::Finding& found) {
    is_said_ = true;
    if (rank_ != (found.rank == 0 ? 1 : 0)) ended_by_ = EndedBy::kAnother;
    end_reason_ = found.reason;
  }

  std::string name_of(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return fmt::format("{} on {}", roles_.names[r], peers_[r].host);
  }

  std::string at_round(int rank) const {
    const uint64_t round = watchdog_ ? watchdog_->last_round_of(rank) : 0;
    return round == 0 ? "" : fmt::format("; it was last heard of in round {}", round);
  }

  void exchange_peers() {
    struct Fixed {
      char host[MPI_MAX_PROCESSOR_NAME];
      HostId host_id;
      uint64_t pid_namespace;
      int64_t pid;
      cpu_set_t cores;
      char bell[WakeUpSocket::kNameBytes + 1];
      WatchdogContact watchdog;
    };
    Fixed mine{};
    int length = 0;
    mpi::check(MPI_Get_processor_name(mine.host, &length), "MPI_Get_processor_name");
    mine.host_id = this_host();
    mine.pid_namespace = this_pid_namespace();
    mine.pid = getpid();
    wake_up_.name().copy(mine.bell, WakeUpSocket::kNameBytes);
    sched_getaffinity(0, sizeof(mine.cores), &mine.cores);  // empty when it fails
    if (watchdog_) mine.watchdog = watchdog_->contact();
    std::vector<Fixed> all(static_cast<size_t>(size_));
    mpi::check(
        MPI_Allgather(
            &mine, sizeof(Fixed), MPI_BYTE, all.data(), sizeof(Fixed), MPI_BYTE, MPI_COMM_WORLD),
        "MPI_Allgather");
    std::vector<WatchdogContact> contacts;
    for (const Fixed& peer : all) {
      contacts.push_back(peer.watchdog);
      const bool is_here = peer.host_id == mine.host_id && peer.pid_namespace == mine.pid_namespace;
      const auto pid = static_cast<pid_t>(peer.pid);
      peers_.push_back({.host = peer.host,
                        .is_here = is_here,
                        .pid = pid,
                        .pidfd = is_here ? open_process(pid) : -1,
                        .cores = peer.cores,
                        .bell = is_here ? peer.bell : ""});
    }
    start_watchdog(contacts);
  }

  // Who is not reached by all others' bells, or not by the shared memory that messages then lie in,
  // must look by itself.
  void try_bells() {
    for (int to = 0; to < size_; ++to)
      if (to != rank_) wake_up_.greet(peers_[static_cast<size_t>(to)].bell);
    mpi::check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    all_ring_here_ = wake_up_.take_greetings() == size_ - 1 && may_share_memory();
  }

  // Messages that Open MPI moves on only while somebody calls it.
  bool is_moving_bytes() {
    for (int r = 0; r < size_; ++r) {
      if (receives_[static_cast<size_t>(r)].active) return true;
      drop_completed_sends(r);
      if (!sends_[static_cast<size_t>(r)].empty()) return true;
    }
    return false;
  }

  // That ranks [0, num_ranks) of this host may run on together.
  int num_cores_here(int num_ranks) const {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int r = 0; r < num_ranks; ++r) {
      const Peer& peer = peers_[static_cast<size_t>(r)];
      if (peer.is_here) CPU_OR(&cores, &cores, &peer.cores);
    }
    return CPU_COUNT(&cores);
  }

  void post_with_tag(int to, Bytes message, int tag) {
    auto& queue = sends_[static_cast<size_t>(to)];
    queue.push_back({std::move(message), MPI_REQUEST_NULL});
    PendingSend& send = queue.back();
    mpi::check(MPI_Isend(send.bytes.data(),
                         static_cast<int>(send.bytes.size()),
                         MPI_BYTE,
                         to,
                         tag,
                         MPI_COMM_WORLD,
                         &send.request),
               "MPI_Isend");
    wake_up_.ring(peers_[static_cast<size_t>(to)].bell);
  }

  void drop_completed_sends(int to) {
    auto& queue = sends_[static_cast<size_t>(to)];
    while (!queue.empty()) {
      int done = 0;
      mpi::check(MPI_Test(&queue.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0) return;
      queue.pop_front();
    }
  }

  bool match(int from, PendingReceive& receive) {
    int flag = 0;
    MPI_Message message;
    MPI_Status status;
    mpi::check(MPI_Improbe(from, mpi::kMessageTag, MPI_COMM_WORLD, &flag, &message, &status),
               "MPI_Improbe");
    if (flag == 0) return false;
    int size = 0;
    mpi::check(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    receive.bytes.assign(static_cast<size_t>(size), std::byte{0});
    mpi::check(MPI_Imrecv(receive.bytes.data(), size, MPI_BYTE, &message, &receive.request),
               "MPI_Imrecv");
    receive.active = true;
    return true;
  }

  // Another rank has ended the job, or will. Its death makes mpirun end the rest; ranks that die by
  // themselves at that moment can leave Open MPI 4.1's mpirun in a deadlock (seen in 1 of 20 jobs).
  // Under --enable-recovery mpirun ends nobody, hence the limit.
  void wait_to_be_ended(const std::string& reason) const {
    if (!is_said_) log_info("{}", reason);
    end_launcher_later(kLongForLauncher);
    signal(SIGTERM, SIG_DFL);
    sigset_t terminate;
    sigemptyset(&terminate);
    sigaddset(&terminate, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &terminate, nullptr);
    std::this_thread::sleep_for(kTimeToBeEnded);
  }

  std::string take_abort_reason(const MPI_Status& status) {
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    std::string text(static_cast<size_t>(size), '\0');
    MPI_Recv(text.data(),
             size,
             MPI_BYTE,
             status.MPI_SOURCE,
             mpi::kAbortTag,
             MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    return text;
  }

  int rank_ = 0;
  int size_ = 0;
  std::vector<Peer> peers_;
  const WakeUpSocket wake_up_;
  bool all_ring_here_ = false;
  std::vector<std::deque<PendingSend>>
      sends_;  // a deque: MPI holds pointers into the elements' bytes
  std::vector<PendingReceive> receives_;
  std::string end_reason_;  // once this rank knows that the job is ending
  // Who ends the job, once this rank knows that it must end.
  enum class EndedBy : uint8_t {
    kThisRank,
    kFirstHere,  // a lower rank of this host, which sees what this one has seen
    kAnother,
  };
  EndedBy ended_by_ = EndedBy::kThisRank;
  bool is_said_ = false;  // the reason, in this rank's log
  std::chrono::steady_clock::time_point last_peer_check_ = std::chrono::steady_clock::now();
  WatchOptions::Roles roles_;
  std::mutex when_lost_mutex_;
  std::function<void(const std::string&)> when_lost_;
  std::optional<Watchdog> watchdog_;  // last: its thread uses the others
};

}  // namespace

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "MPI";
  return std::string(text, strnlen(text, sizeof(text)));
}

std::unique_ptr<World> make_mpi_world(int* argc, char*** argv, const WatchOptions& watch) {
  return std::make_unique<MpiWorld>(argc, argv, watch);
}

}  // namespace outrider
