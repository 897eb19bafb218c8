// What every World and TargetGroup must do, run by each member; used over threads and over MPI.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "runtime/comm/world/world.h"

namespace outrider::test {

// The values member r contributes to an exchange, the same wherever they are made.
inline std::vector<float> contribution(int member, size_t count, uint32_t seed) {
  std::mt19937 generator(seed * 1000 + static_cast<uint32_t>(member));
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator) * std::exp2(normal(generator) * 8);
  return values;
}

// left += right.
inline void add_to(std::vector<float>& left, const std::vector<float>& right) {
  for (size_t i = 0; i < left.size(); ++i) left[i] += right[i];
}

// The sum of members [first, first + span), span a power of two, as a tree says it, written apart
// from the code that is tested.
inline std::vector<float> tree_sum(
    int first, int span, int num_members, size_t count, uint32_t seed) {
  if (span == 1) return contribution(first, count, seed);
  std::vector<float> sum = tree_sum(first, span / 2, num_members, count, seed);
  const int middle = first + span / 2;
  if (middle < num_members) add_to(sum, tree_sum(middle, span / 2, num_members, count, seed));
  return sum;
}

inline std::vector<float> expected_sum(int num_members, size_t count, uint32_t seed, Fold fold) {
  if (fold == Fold::kTree) {
    const auto span = static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_members)));
    return tree_sum(0, span, num_members, count, seed);
  }
  std::vector<float> sum = contribution(0, count, seed);
  for (int r = 1; r < num_members; ++r) add_to(sum, contribution(r, count, seed));
  return sum;
}

inline void check_float_sum(TargetGroup& group, size_t count, uint32_t seed, Fold fold) {
  const std::vector<float> expected = expected_sum(group.size(), count, seed, fold);
  if (group.size() > 3 && count > 100) {
    const Fold other = fold == Fold::kTree ? Fold::kRankOrder : Fold::kTree;
    ASSERT_NE(expected, expected_sum(group.size(), count, seed, other));
  }
  std::vector<float> values = contribution(group.rank(), count, seed);
  if (count > 100) {
    ASSERT_NE(values[0], values[1]);
    ASSERT_NE(values, contribution((group.rank() + 1) % (group.size() + 1), count, seed));
  }
  group.all_reduce_sum(std::span<float>(values), fold);
  // Bits, not values: the order of the fold is the promise.
  ASSERT_EQ(std::memcmp(values.data(), expected.data(), count * sizeof(float)), 0)
      << "count " << count;
}

inline void check_integers(TargetGroup& group, size_t count) {
  std::vector<uint64_t> sums(count);
  std::vector<uint64_t> maxima(count);
  for (size_t i = 0; i < count; ++i) {
    sums[i] = (i + 1) * static_cast<uint64_t>(group.rank() + 1);
    maxima[i] = static_cast<uint64_t>(group.rank()) == i % static_cast<uint64_t>(group.size())
                    ? ~uint64_t{0} - i
                    : i;
  }
  group.all_reduce_sum(std::span<uint64_t>(sums));
  group.all_reduce_max(std::span<uint64_t>(maxima));
  const auto members = static_cast<uint64_t>(group.size());
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(sums[i], (i + 1) * members * (members + 1) / 2);
    ASSERT_EQ(maxima[i], ~uint64_t{0} - i);
  }
}

inline void check_gather(TargetGroup& group, size_t num_bytes) {
  std::vector<std::byte> mine(num_bytes, std::byte(group.rank() + 1));
  std::vector<std::byte> all(num_bytes * static_cast<size_t>(group.size()));
  group.all_gather(mine, all);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], std::byte(i / num_bytes + 1));
}

inline void check_group(TargetGroup& group) {
  // Both sides of the direct / sliced boundary, odd sizes, and sizes smaller than the group.
  uint32_t seed = 1;
  for (size_t count : {1, 2, 3, 255, 8191, 8192, 8193, 100003}) {
    for (const Fold fold : {Fold::kRankOrder, Fold::kTree})
      check_float_sum(group, count, seed++, fold);
  }
  for (size_t count : {1, 17, 5000}) check_integers(group, count);
  for (size_t num_bytes : {1, 92, 40000}) check_gather(group, num_bytes);
  for (int i = 0; i < 300; ++i) {
    const Fold fold = i % 2 == 0 ? Fold::kRankOrder : Fold::kTree;
    check_float_sum(group, 64, 100 + static_cast<uint32_t>(i), fold);
  }
}

inline Bytes message(int from, int to, int number) {
  Bytes bytes(static_cast<size_t>(number % 7 == 6 ? 300000 : number + 1), std::byte(number));
  bytes[0] = std::byte(from * 16 + to);
  return bytes;
}

// Every pair exchanges messages, small and large; they arrive whole and in order.
inline void check_mailboxes(World& world) {
  constexpr int kMessages = 20;
  for (int number = 0; number < kMessages; ++number) {
    for (int to = 0; to < world.size(); ++to) {
      if (to != world.rank()) world.post(to, message(world.rank(), to, number));
    }
  }
  for (int from = 0; from < world.size(); ++from) {
    if (from == world.rank()) continue;
    for (int number = 0; number < kMessages; ++number) {
      ASSERT_EQ(receive(world, from, world.size(), 30), message(from, world.rank(), number));
    }
    ASSERT_FALSE(world.poll(from).has_value());
  }
}

}  // namespace outrider::test
