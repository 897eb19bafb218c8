// Lines of the log: their form, levels and names, and that no text can forge a second line or
// command a terminal.
#include "runtime/base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <thread>

#include "runtime/base/error.h"

namespace outrider {
namespace {

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kInfo);
    set_process_log_name("process");
    set_thread_log_name("");
  }
  void TearDown() override { SetUp(); }

  static std::string written_by(const std::function<void()>& action) {
    ::testing::internal::CaptureStderr();
    action();
    return ::testing::internal::GetCapturedStderr();
  }
  // A line without its time, "12:00:01.234 ", whose form is checked here.
  static std::string without_time(const std::string& line) {
    const std::string form = "00:00:00.000 ";
    EXPECT_GE(line.size(), form.size());
    for (size_t i = 0; i < form.size() && i < line.size(); ++i) {
      const bool is_digit = std::isdigit(static_cast<unsigned char>(line[i])) != 0;
      EXPECT_TRUE(form[i] == '0' ? is_digit : line[i] == form[i]) << line;
    }
    return line.substr(std::min(line.size(), form.size()));
  }
  static std::string logged(const std::string& text) {
    return without_time(written_by([&] { log_line(LogLevel::kInfo, text); }));
  }
};

TEST_F(LogTest, LevelsHaveLettersAndAMinimum) {
  EXPECT_EQ(without_time(written_by([] { log_info("loaded {} tensors", 201); })),
            "I process loaded 201 tensors\n");
  EXPECT_EQ(without_time(written_by([] { log_warning("w"); })), "W process w\n");
  EXPECT_EQ(without_time(written_by([] { log_error("e"); })), "E process e\n");
  EXPECT_EQ(written_by([] { log_debug("d"); }), "");
  set_log_level(LogLevel::kDebug);
  EXPECT_EQ(without_time(written_by([] { log_debug("d"); })), "D process d\n");
  set_log_level(LogLevel::kError);
  EXPECT_EQ(written_by([] { log_warning("w"); }), "");
}

TEST_F(LogTest, NamesOfLevels) {
  EXPECT_EQ(log_level_from_name("debug"), LogLevel::kDebug);
  EXPECT_EQ(log_level_from_name("info"), LogLevel::kInfo);
  EXPECT_EQ(log_level_from_name("warning"), LogLevel::kWarning);
  EXPECT_EQ(log_level_from_name("error"), LogLevel::kError);
  EXPECT_THROW(log_level_from_name("INFO"), Error);
  EXPECT_THROW(log_level_from_name(""), Error);
}

TEST_F(LogTest, AThreadsNameWinsOverTheProcesss) {
  EXPECT_EQ(without_time(written_by([] {
              std::thread([] {
                set_thread_log_name("target[1/4]");
                log_info("x");
              }).join();
            })),
            "I target[1/4] x\n");
  EXPECT_EQ(logged("x"), "I process x\n");
}

TEST_F(LogTest, NoTextForgesALine) {
  EXPECT_EQ(logged("a\n12:00:00.000 E process gone\r\n"),
            "I process a\\x0a12:00:00.000 E process gone\\x0d\\x0a\n");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::string line = logged(all);
  const auto num_controls = std::count_if(line.begin(), line.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  EXPECT_EQ(num_controls, 1) << "only the line's own end";
  EXPECT_EQ(line.back(), '\n');
}

TEST_F(LogTest, NoTextCommandsATerminal) {
  EXPECT_EQ(logged("\x1b[2J"), "I process \\x1b[2J\n");
  EXPECT_EQ(logged("\xc2\x9b"
                   "2J"),
            "I process \\xc2\\x9b2J\n");
  EXPECT_EQ(logged("\xc2\x85"), "I process \\xc2\\x85\n");
  EXPECT_EQ(logged("a\xe2\x80\xa8z\xe2\x80\xa9"), "I process a\\xe2\\x80\\xa8z\\xe2\\x80\\xa9\n");
}

TEST_F(LogTest, OrdinaryTextStaysReadable) {
  EXPECT_EQ(logged("Grüße, 世界 – \"ok\" \\ \xc2\xa0"),
            "I process Grüße, 世界 – \"ok\" \\ \xc2\xa0\n");
  EXPECT_EQ(logged("torn \xe2\x80"), "I process torn \xe2\x80\n");
  EXPECT_EQ(logged("torn \xc2"), "I process torn \xc2\n");
  EXPECT_EQ(logged(""), "I process \n");
}

}  // namespace
}  // namespace outrider
