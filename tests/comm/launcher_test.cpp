// What a rank leaves behind for a launcher that stays: a shell under the launcher's name starts
// this program as its rank.
#include "runtime/comm/world/launcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

namespace outrider {
namespace {

using std::chrono::milliseconds;
namespace fs = std::filesystem;

// How a launcher of that name ends whose rank has asked for its end after 300 ms: the signal, 0
// when it ended by itself with code 0. script: what it does when the rank has gone.
int end_of(const std::string& name, const std::string& script) {
  const std::string text = (fs::temp_directory_path() / "launcher_test.XXXXXX").string();
  std::string folder = text;
  if (mkdtemp(folder.data()) == nullptr) return -1;
  const std::string launcher = folder + "/" + name;
  fs::create_symlink("/bin/sh", launcher);
  const std::string command = fs::read_symlink("/proc/self/exe").string() + " --rank; " + script;
  const pid_t pid = fork();
  if (pid == 0) {
    execl(launcher.c_str(), launcher.c_str(), "-c", command.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  fs::remove_all(folder);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

// For one that is to be ended: that may come late. And for one that is not: it would have come.
constexpr const char* kStays = "i=0; while [ $i -lt 120 ]; do sleep 0.5; i=$((i + 1)); done";
constexpr const char* kStaysAWhile = "for i in 1 2 3 4 5 6; do sleep 0.5; done";

TEST(Launcher, OneThatStaysIsTerminated) {
  EXPECT_EQ(end_of("mpirun", kStays), SIGTERM);
  EXPECT_EQ(end_of("orted", kStays), SIGTERM);
  EXPECT_EQ(end_of("prted", kStays), SIGTERM);
}

TEST(Launcher, OneThatIgnoresItIsKilled) {
  EXPECT_EQ(end_of("mpirun.openmpi", std::string("trap '' TERM; ") + kStays), SIGKILL);
}

TEST(Launcher, OneThatEndsIsLeftAlone) { EXPECT_EQ(end_of("mpirun", ":"), 0); }

TEST(Launcher, NoOtherParentIsTouched) {
  EXPECT_EQ(end_of("slurmstepd", kStaysAWhile), 0);
  EXPECT_EQ(end_of("sh", kStaysAWhile), 0);
}

TEST(Launcher, NorADaemonThatOutlivesItsJobs) {
  setenv("PMIX_NAMESPACE", "prte-node-1234@1", 1);
  EXPECT_EQ(end_of("prted", kStaysAWhile), 0);
  setenv("PMIX_NAMESPACE", "prterun-node-1234@1", 1);
  EXPECT_EQ(end_of("prted", kStays), SIGTERM);
  unsetenv("PMIX_NAMESPACE");
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--rank") {
    outrider::end_launcher_later(std::chrono::milliseconds(300));
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
