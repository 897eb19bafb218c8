// The host side of gpu_probe: reports that parse whatever is written into them, and processes that
// end in time.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tools/gpu/probe/process.h"
#include "tools/gpu/probe/report.h"
#include "tools/gpu/probe/shared_library.h"

namespace outrider::gpu_probe {
namespace {

std::string fresh_folder(const char* name) {
  const std::string folder = testing::TempDir() + name + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(GpuProbeReport, IsJsonWhateverIsWrittenIntoIt) {
  const std::string folder = fresh_folder("report");
  Report report("name", "A question?", folder);
  const std::string odd = "quotes \" and \\ and\nlines\tand \x01";
  report.note(odd);
  report.value("rate", 4321.5);
  report.value("nothing", 0.0 / 0.0);
  Table& table = report.table("A table", {"what", "us"});
  for (const char* cell :
       {"12.5", "-3", "1e5", "4.", "+1", "", "1.2.3", "12 (34)", "nan", "0x10", "e", "-"}) {
    table.rows.push_back({"cell", cell});
  }
  ASSERT_TRUE(report.save("a \"problem\""));
  const auto json = nlohmann::json::parse(std::ifstream(folder + "/name.json"));
  EXPECT_EQ(json["status"], "a \"problem\"");
  EXPECT_EQ(json["notes"][0], odd);
  EXPECT_EQ(json["values"]["rate"], 4321.5);
  EXPECT_TRUE(json["values"]["nothing"].is_null());
  const auto& rows = json["tables"][0]["rows"];
  ASSERT_EQ(rows.size(), 12u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i][1].is_number(), i < 3) << rows[i][1];
  }
  EXPECT_EQ(rows[0][1], 12.5);
  std::ifstream markdown(folder + "/name.md");
  const std::string text(std::istreambuf_iterator<char>(markdown), {});
  EXPECT_NE(text.find("## A question?"), std::string::npos);
  EXPECT_NE(text.find("| cell | 12.5 |"), std::string::npos);
  EXPECT_NE(text.find("**name: a \"problem\"**"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(GpuProbeReport, SaysSoWhenItCannotBeWritten) {
  EXPECT_FALSE(Report("name", "A question?", "no/such/folder").save("ok"));
}

// What the tests below run this binary again for.
TEST(DISABLED_Again, SleepsLong) {
  std::this_thread::sleep_for(std::chrono::seconds(100));
  EXPECT_TRUE(false);
}
TEST(DISABLED_Again, StartsOneThatSleepsLong) {
  const pid_t process =
      start_self({"--gtest_also_run_disabled_tests", "--gtest_filter=DISABLED_Again.SleepsLong"},
                 {{}, testing::TempDir() + "again_child.log", true});
  const std::string path = std::getenv("OUTRIDER_PROBE_TEST");
  std::ofstream(path + ".new") << process;
  std::filesystem::rename(path + ".new", path);
  std::this_thread::sleep_for(std::chrono::seconds(100));
}
TEST(DISABLED_Again, SaysItsEnvironment) {
  EXPECT_STREQ(std::getenv("OUTRIDER_PROBE_TEST"), "told");
}

pid_t start_again(const char* which, const StartOptions& options) {
  return start_self(
      {"--gtest_also_run_disabled_tests", std::string("--gtest_filter=DISABLED_Again.") + which},
      options);
}
Ended run_again(const char* which, const StartOptions& options, double limit_s) {
  return wait_for(start_again(which, options), limit_s, options.own_group);
}

TEST(GpuProbeProcess, IsEndedWhenItsTimeIsOver) {
  for (const bool own_group : {false, true}) {
    const Ended ended =
        run_again("SleepsLong", {{}, testing::TempDir() + "again.log", own_group}, 0.3);
    EXPECT_TRUE(ended.timed_out);
    EXPECT_EQ(ended.code, 128 + 9);
    EXPECT_LT(ended.seconds, 60);
  }
}

// A probe in a group of its own must not go on using the GPU when gpu_probe was killed.
TEST(GpuProbeProcess, DiesWithItsParent) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that it becomes ours
  const std::string path = testing::TempDir() + "again" + std::to_string(getpid()) + ".pid";
  const pid_t parent = start_again("StartsOneThatSleepsLong",
                                   {{{"OUTRIDER_PROBE_TEST", path}}, path + ".log", false});
  while (!std::filesystem::exists(path) && kill(parent, 0) == 0) usleep(1000);
  pid_t child = 0;
  std::ifstream(path) >> child;
  ASSERT_GT(child, 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  const Ended ended = wait_for(child, 30, false);
  EXPECT_FALSE(ended.timed_out);
  EXPECT_EQ(ended.code, 128 + SIGKILL);
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".log");
}

TEST(GpuProbeProcess, GetsItsEnvironmentAndItsExitCodeIsSeen) {
  const std::string log = testing::TempDir() + "again" + std::to_string(getpid()) + ".log";
  const Ended told =
      run_again("SaysItsEnvironment", {{{"OUTRIDER_PROBE_TEST", "told"}}, log, false}, 60);
  EXPECT_EQ(told.code, 0);
  EXPECT_FALSE(told.timed_out);
  const Ended not_told = run_again("SaysItsEnvironment", {{}, log, false}, 60);
  EXPECT_EQ(not_told.code, 1);
  EXPECT_NE(last_lines(log, 3).find("FAILED"), std::string::npos);
  std::filesystem::remove(log);
}

TEST(GpuProbeLibrary, OneThatIsMissingIsOneSentenceWithTheWayOut) {
  try {
    SharedLibrary("libnosuch.so.1", "no/such/libnosuch.so.1", "OUTRIDER_NO_SUCH");
    FAIL() << "found a library that is not there";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("name it by OUTRIDER_NO_SUCH"), std::string::npos);
  }
  const SharedLibrary math("libm.so.6", "", "OUTRIDER_NO_SUCH");
  EXPECT_EQ(math.function<double(double)>("floor")(2.5), 2.0);
  EXPECT_THROW(math.function<double(double)>("no_such_function"), std::runtime_error);
}

}  // namespace
}  // namespace outrider::gpu_probe
