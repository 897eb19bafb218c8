// Messages over a socket pair: whole, in order, never waiting, and the end of the other side is
// seen.
#include "runtime/comm/message_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>

namespace outrider {
namespace {

struct MessageSocketTest : ::testing::Test {
  std::unique_ptr<MessageSocket> left;
  std::unique_ptr<MessageSocket> right;
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    left = std::make_unique<MessageSocket>(ends[0]);
    right = std::make_unique<MessageSocket>(ends[1]);
  }
};

Bytes message(size_t size, int value) { return Bytes(size, std::byte(value)); }

TEST_F(MessageSocketTest, MessagesArriveWholeAndInOrder) {
  EXPECT_FALSE(right->poll().has_value());
  for (int i = 0; i < 50; ++i) left->post(message(static_cast<size_t>(i * 37), i));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(right->poll(), message(static_cast<size_t>(i * 37), i));
  EXPECT_FALSE(right->poll().has_value());
  right->post(message(3, 9));
  EXPECT_EQ(left->poll(), message(3, 9));
}

TEST_F(MessageSocketTest, WhatDoesNotFitWaitsInTheBuffer) {
  const Bytes large = message(5 << 20, 7);
  left->post(large);
  EXPECT_GT(left->num_unsent_bytes(), size_t{0}) << "a socket takes less than 5 MiB at once";
  std::optional<Bytes> received;
  for (int i = 0; i < 10000 && !received; ++i) {
    received = right->poll();
    left->poll();  // sends on
  }
  EXPECT_EQ(received, large);
  EXPECT_EQ(left->num_unsent_bytes(), size_t{0});
}

TEST_F(MessageSocketTest, TheOtherSidesEndIsSeenAfterItsLastMessage) {
  left->post(message(10, 1));
  left.reset();
  EXPECT_EQ(right->poll(), message(10, 1));
  EXPECT_FALSE(right->poll().has_value());
  EXPECT_TRUE(right->closed());
  right->post(message(10, 2));  // to nobody: no signal, no exception
}

TEST_F(MessageSocketTest, ATornMessageIsNotHandedOut) {
  const Bytes large = message(5 << 20, 7);
  left->post(large);
  left.reset();
  while (!right->closed()) EXPECT_FALSE(right->poll().has_value());
  EXPECT_FALSE(right->poll().has_value());
}

}  // namespace
}  // namespace outrider
