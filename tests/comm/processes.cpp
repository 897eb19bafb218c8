// See processes.h.
#include "tests/comm/processes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "runtime/base/error.h"

namespace outrider::test {
namespace {

using Clock = std::chrono::steady_clock;

// Says to a process which rank it is: "RANK SIZE".
constexpr const char* kRankVariable = "OUTRIDER_TEST_RANK";
// What the ranks' processes find open: their sockets by rank, then these.
constexpr int kFirstSocket = 100;
constexpr int kSharedFile = kFirstSocket + kMostProcesses;
constexpr int kAnswerFile = kSharedFile + 1;

constexpr int kThrew = 1;
constexpr int kFailed = 2;

// Closed with the object; not seen by other programs.
class File {
 public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {
    // Else dup2() onto the numbers above could replace it before its own turn.
    if (descriptor < 0 || descriptor >= kFirstSocket) throw Error("no files for other processes");
  }
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(File&& other) noexcept { std::swap(descriptor_, other.descriptor_); }
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

File make_memory_file(size_t num_bytes) {
  File file(memfd_create("outrider-test", MFD_CLOEXEC));
  if (ftruncate(file.get(), static_cast<off_t>(num_bytes)) != 0) throw Error("no shared memory");
  return file;
}

std::string read_all(const File& file) {
  std::string text(static_cast<size_t>(lseek(file.get(), 0, SEEK_END)), '\0');
  const ssize_t num_read = pread(file.get(), text.data(), text.size(), 0);
  text.resize(num_read < 0 ? 0 : static_cast<size_t>(num_read));
  return text;
}

// What the starting test keeps of a rank.
struct Process {
  pid_t pid = 0;
  File answer;
  File output;
  bool is_running = true;
  EndedRank ended;
};

// Both ends of a socket for each two ranks.
std::vector<std::vector<File>> connect_all(int num_ranks) {
  const auto n = static_cast<size_t>(num_ranks);
  std::vector<std::vector<File>> ends(n);
  for (auto& row : ends) row.resize(n);
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      int pair[2] = {-1, -1};
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) throw Error("no sockets");
      ends[a][b] = File(pair[0]);
      ends[b][a] = File(pair[1]);
    }
  }
  return ends;
}

std::vector<std::string> environment_of(int rank, int num_ranks) {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    if (std::strncmp(*at, "GTEST_", 6) != 0) variables.emplace_back(*at);  // its reports, shards
  }
  variables.push_back(fmt::format("{}={} {}", kRankVariable, rank, num_ranks));
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

Process start(int rank, const std::vector<File>& sockets, const File& shared) {
  Process process = {.answer = make_memory_file(0), .output = make_memory_file(0)};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (size_t r = 0; r < sockets.size(); ++r) {
    if (sockets[r].get() < 0) continue;
    posix_spawn_file_actions_adddup2(
        &actions, sockets[r].get(), kFirstSocket + static_cast<int>(r));
  }
  posix_spawn_file_actions_adddup2(&actions, shared.get(), kSharedFile);
  posix_spawn_file_actions_adddup2(&actions, process.answer.get(), kAnswerFile);
  posix_spawn_file_actions_adddup2(&actions, process.output.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> arguments = {
      program, fmt::format("--gtest_filter={}.{}", test.test_suite_name(), test.name())};
  std::vector<std::string> environment = environment_of(rank, static_cast<int>(sockets.size()));
  const int result = posix_spawn(&process.pid,
                                 program.c_str(),
                                 &actions,
                                 nullptr,
                                 pointers_to(arguments).data(),
                                 pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (result != 0) throw Error("a rank's process could not be started");
  return process;
}

void take_end(Process& process, int status, double ended_s) {
  process.is_running = false;
  EndedRank& ended = process.ended;
  ended.ended_s = ended_s;
  if (WIFSIGNALED(status)) {
    ended.signal = WTERMSIG(status);
  } else {
    ended.exit_code = WEXITSTATUS(status);
  }
  (ended.exit_code == kThrew ? ended.error : ended.answer) = read_all(process.answer);
  ended.output = read_all(process.output);
}

void wait_for_all(std::vector<Process>& processes, double limit_s) {
  const auto begin = Clock::now();
  const auto passed_s = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (size_t num_running = processes.size(); num_running > 0;) {
    const bool is_late = passed_s() > limit_s;
    num_running = 0;
    for (Process& process : processes) {
      if (!process.is_running) continue;
      int status = 0;
      if (is_late) kill(process.pid, SIGKILL);
      process.ended.is_late = is_late;
      if (waitpid(process.pid, &status, is_late ? 0 : WNOHANG) == process.pid) {
        take_end(process, status, passed_s());
      } else {
        ++num_running;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void write_answer(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = write(kAnswerFile, text.data() + at, text.size() - at);
    if (written <= 0) _exit(kFailed);
    at += static_cast<size_t>(written);
  }
}

[[noreturn]] void be_rank(const char* place, const RankBody& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char* rest = nullptr;
  const int rank = static_cast<int>(std::strtol(place, &rest, 10));
  const int num_ranks = static_cast<int>(std::strtol(rest, nullptr, 10));
  std::vector<int> sockets;
  for (int r = 0; r < num_ranks; ++r) sockets.push_back(kFirstSocket + r);
  void* const shared =
      mmap(nullptr, shared_bytes(num_ranks), PROT_READ | PROT_WRITE, MAP_SHARED, kSharedFile, 0);
  if (shared == MAP_FAILED) _exit(kFailed);
  int code = 0;
  std::string answer;
  try {
    SocketWorld world(rank, sockets, static_cast<std::byte*>(shared));
    answer = body(world);
    world.finish(0);
  } catch (const std::exception& error) {
    code = kThrew;
    answer = error.what();
  }
  write_answer(answer);
  std::fflush(nullptr);
  _exit(code == 0 && testing::Test::HasFailure() ? kFailed : code);
}

}  // namespace

std::vector<EndedRank> run_in_processes(int num_ranks, double limit_s, const RankBody& body) {
  if (const char* place = std::getenv(kRankVariable)) be_rank(place, body);
  auto sockets = connect_all(num_ranks);
  const File shared = make_memory_file(shared_bytes(num_ranks));
  std::vector<Process> processes;
  for (int r = 0; r < num_ranks; ++r) {
    processes.push_back(start(r, sockets[static_cast<size_t>(r)], shared));
  }
  // Only the ranks' own ends stay, so that a rank's end is seen by the others.
  sockets.clear();
  wait_for_all(processes, limit_s);
  std::vector<EndedRank> ended;
  for (Process& process : processes) ended.push_back(std::move(process.ended));
  return ended;
}

void expect_fine(const std::vector<EndedRank>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const EndedRank& rank = ranks[r];
    EXPECT_EQ(rank.exit_code, 0) << "rank " << r << (rank.is_late ? " took too long" : "")
                                 << ", signal " << rank.signal << ": " << rank.error << "\n"
                                 << rank.output;
  }
}

void die_at_count(SocketWorld& world, uint32_t count) {
  std::thread([&board = world.board(), count] {
    while (board.count.load() < count) std::this_thread::sleep_for(std::chrono::microseconds(100));
    kill(getpid(), SIGKILL);
  }).detach();
}

}  // namespace outrider::test
