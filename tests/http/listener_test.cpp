// Addresses to listen on: what URLs say of them, and whose file a Unix socket may be.
#include "http/wire/listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "runtime/base/error.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

TEST(UrlOf, NamesSchemeAddressAndPort) {
  EXPECT_EQ(url_of({.host = "127.0.0.1"}, 80), "http://127.0.0.1:80");
  EXPECT_EQ(url_of({.host = "::1"}, 80), "http://[::1]:80");
  EXPECT_EQ(url_of({.host = "node", .ssl_certfile = "c"}, 443), "https://node:443");
  EXPECT_EQ(url_of({.uds = "dir/socket", .ssl_certfile = "c"}, 0), "unix:dir/socket");
}

std::string problem_of(const HttpOptions& options) {
  try {
    Listener listener(options);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Listener, SaysWhyAnAddressCannotBeHad) {
  const Listener first({.host = "127.0.0.1", .port = 0});
  EXPECT_GT(first.port(), 0);
  EXPECT_NE(problem_of({.host = "127.0.0.1", .port = first.port()}).find("already in use"),
            std::string::npos);
  // Of documentation: nobody's.
  EXPECT_NE(problem_of({.host = "192.0.2.1", .port = 0}).find("Cannot assign"), std::string::npos);
}

TEST(Listener, CloseEndsAWaitingAccept) {
  Listener listener({.host = "127.0.0.1", .port = 0});
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    listener.close();
  });
  EXPECT_EQ(listener.accept(), -1);
  closer.join();
}

class UnixSocket : public ::testing::Test {
 protected:
  UnixSocket() {
    std::string name = (fs::temp_directory_path() / "outrider-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    options_.uds = (folder_ / "socket").string();
  }
  ~UnixSocket() override { fs::remove_all(folder_); }

  // The file of a server that was killed: bound, and nobody listens.
  void leave_a_socket() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options_.uds.copy(address.sun_path, options_.uds.size());
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::close(fd);
    EXPECT_TRUE(fs::is_socket(options_.uds));
  }

  fs::path folder_;
  HttpOptions options_;
};

TEST_F(UnixSocket, ReplacesADeadServersFileAndRemovesItsOwn) {
  for (const bool is_left : {false, true}) {
    if (is_left) leave_a_socket();
    Listener listener(options_);
    EXPECT_EQ(listener.port(), 0);
    EXPECT_TRUE(fs::is_socket(options_.uds));
    listener.close();
    EXPECT_FALSE(fs::exists(options_.uds));
  }
}

TEST_F(UnixSocket, ALiveServersIsRefused) {
  const Listener first(options_);
  EXPECT_EQ(problem_of(options_), "uds: a running server listens on " + options_.uds);
  EXPECT_TRUE(fs::is_socket(options_.uds));
}

TEST_F(UnixSocket, AnotherKindOfFileIsRefusedAndStays) {
  std::ofstream(options_.uds) << "text";
  EXPECT_EQ(problem_of(options_), "uds: " + options_.uds + " is there and is no socket");
  EXPECT_EQ(fs::file_size(options_.uds), 4u);
}

TEST_F(UnixSocket, AFileThatIsNoLongerItsOwnStays) {
  Listener listener(options_);
  fs::remove(options_.uds);
  std::ofstream(options_.uds) << "text";
  listener.close();
  EXPECT_EQ(fs::file_size(options_.uds), 4u);
}

TEST_F(UnixSocket, PathsThatCannotBe) {
  options_.uds = (folder_ / std::string(108, 'a')).string();
  EXPECT_NE(problem_of(options_).find("is longer than 107 bytes"), std::string::npos);
  options_.uds = (folder_ / "nowhere" / "socket").string();
  EXPECT_EQ(problem_of(options_),
            "uds: cannot listen on " + options_.uds + ": No such file or directory");
}

}  // namespace
}  // namespace outrider
