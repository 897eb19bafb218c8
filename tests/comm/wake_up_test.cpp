// The bell that ends a wait for messages: an hour's wait ends when it is rung, before it or during
// it, and when the other descriptor has something. A test that hangs has failed.
#include "runtime/comm/world/wake_up.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace outrider {
namespace {

constexpr std::chrono::microseconds kAnHour = std::chrono::hours(1);

TEST(WakeUpSocket, RungBeforeTheWait) {
  const WakeUpSocket mine;
  const WakeUpSocket theirs;
  ASSERT_FALSE(mine.name().empty());
  ASSERT_NE(mine.name(), theirs.name());
  ASSERT_LE(mine.name().size(), WakeUpSocket::kNameBytes);
  theirs.ring(mine.name());
  theirs.ring(mine.name());
  theirs.greet(mine.name());
  mine.wait(kAnHour, -1);
  EXPECT_EQ(mine.take_greetings(), 0) << "a wait answers all rings before it";
}

TEST(WakeUpSocket, GreetingsAreToldFromMessages) {
  const WakeUpSocket mine;
  const WakeUpSocket theirs;
  theirs.greet(mine.name());
  EXPECT_EQ(mine.take_greetings(), 1);
  // Who is greeted by all may have been rung by the fastest of them already.
  theirs.ring(mine.name());
  mine.greet(mine.name());
  theirs.greet(mine.name());
  theirs.ring(mine.name());
  EXPECT_EQ(mine.take_greetings(), 2);
  EXPECT_EQ(mine.take_greetings(), 0);
}

TEST(WakeUpSocket, RungDuringTheWait) {
  const WakeUpSocket mine;
  std::thread other([&] {
    const WakeUpSocket theirs;
    usleep(2000);
    theirs.ring(mine.name());
  });
  mine.wait(kAnHour, -1);
  other.join();
}

TEST(WakeUpSocket, NobodyIsKeptWaiting) {
  const WakeUpSocket mine;
  std::string gone;
  {
    const WakeUpSocket other;
    gone = other.name();
  }
  mine.ring(gone);
  mine.ring("");
  mine.ring(std::string(1000, 'x'));
  const WakeUpSocket full;
  for (int i = 0; i < 100000; ++i) mine.ring(full.name());
  full.wait(kAnHour, -1);
  EXPECT_EQ(full.take_greetings(), 0);
  mine.wait(std::chrono::microseconds(1), -1);  // nobody rings
}

TEST(WakeUpSocket, TheOtherDescriptorEndsTheWait) {
  const WakeUpSocket bell;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ASSERT_EQ(write(ends[0], "x", 1), 1);
  bell.wait(kAnHour, ends[1]);
  wait_readable(ends[1], kAnHour);
  char byte = 0;
  ASSERT_EQ(read(ends[1], &byte, 1), 1);
  close(ends[0]);
  bell.wait(kAnHour, ends[1]);  // closed is something, too
  wait_readable(ends[1], kAnHour);
  close(ends[1]);
}

}  // namespace
}  // namespace outrider
