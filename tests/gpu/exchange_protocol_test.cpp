// The exchange's protocol with threads as ranks: its sums, with ranks that are held up now and
// then, and what the others do when one dies. OUTRIDER_EXCHANGE_ROUNDS sets the number of rounds,
// OUTRIDER_EXCHANGE_SEED what is in them (for long runs under ThreadSanitizer, docs/testing.md).
#include "runtime/ops/cuda/exchange/exchange_protocol.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "runtime/base/numbers/rng.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kSlotVectors = 12;
constexpr uint64_t kLongNs = uint64_t{120} * 1000000000;

struct HostMemory : WatchedMemory {
  static inline thread_local std::vector<const void*> prefetched;  // of this thread
  void prefetch(const void* line) { prefetched.push_back(line); }
  void pause() {
    if (++num_pauses_ % 256 == 0) std::this_thread::yield();
  }

 private:
  uint32_t num_pauses_ = 0;
};
using Round = ExchangeRound<HostMemory>;

struct Member {
  std::vector<Vector4> memory;
  ExchangeState state;
  ExchangeReport report;
  ExchangeView view;
};

std::deque<Member> make_members(int32_t size, uint64_t limit_ns, uint32_t num_blocks = 1) {
  std::deque<Member> members(static_cast<size_t>(size));
  for (Member& member : members) {
    member.memory.assign(exchange_memory_vectors(size, kSlotVectors),
                         {kEmptyWord, kEmptyWord, kEmptyWord, kEmptyWord});
  }
  for (int32_t r = 0; r < size; ++r) {
    Member& member = members[static_cast<size_t>(r)];
    member.view = {.rank = r,
                   .size = size,
                   .slot_vectors = kSlotVectors,
                   .num_blocks = num_blocks,
                   .state = &member.state,
                   .report = &member.report,
                   .limit_ns = limit_ns,
                   .sums_limit_ns = limit_ns + limit_ns / 8};
    for (size_t peer = 0; peer < members.size(); ++peer) {
      member.view.memory[peer] = members[peer].memory.data();
    }
  }
  return members;
}

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

uint64_t seed() {
  static const uint64_t from_outside = number_from("OUTRIDER_EXCHANGE_SEED", 0);
  return from_outside;
}

// What a round is made of, the same for all who ask.
struct Draw {
  explicit Draw(uint64_t round) : hash(mix_seed(77 + seed(), round)) {}
  uint64_t hash;
  uint32_t num_vectors() const { return 1 + static_cast<uint32_t>(hash % kSlotVectors); }
  ExchangeKind kind() const {
    const bool two_shots = (hash >> 21 & 1) != 0;
    return {.in_tree = (hash >> 20 & 1) != 0,
            .two_shot_vectors = two_shots ? 0 : ExchangeKind::kNever};
  }
  // Few bits, so that the order of sums shows; sometimes -0.0.
  uint32_t part(int32_t rank, uint32_t element) const {
    const auto r = static_cast<uint32_t>(rank);
    const uint32_t x = static_cast<uint32_t>(hash >> 32) + (r * 101 + element) * 2654435761u;
    if (x % 16 == 0) return kEmptyWord;
    return bits_of(static_cast<float>(static_cast<int32_t>(x)) * (x % 3 == 0 ? 1.0f : 1e-5f));
  }
  Vector4 part_vector(int32_t rank, uint32_t v) const {
    return {part(rank, 4 * v), part(rank, 4 * v + 1), part(rank, 4 * v + 2), part(rank, 4 * v + 3)};
  }
  float sum(int32_t size, uint32_t element) const {
    float parts[kMaxPeers] = {};
    for (int32_t r = 0; r < size; ++r) parts[r] = float_of(part(r, element)) + 0.0f;
    if (!kind().in_tree) {
      for (int32_t r = 1; r < size; ++r) parts[0] += parts[r];
      return parts[0];
    }
    for (int32_t step = 1; step < size; step *= 2) {
      for (int32_t left = 0; left + step < size; left += 2 * step)
        parts[left] += parts[left + step];
    }
    return parts[0];
  }
};

// One of a rank's threads; all of them call, and meet at `meet` where a launch would end. Returns
// how many sums were wrong.
int run_round(Member& member,
              uint64_t number,
              const ExchangeThread& thread,
              const std::function<void()>& meet) {
  const Draw draw(number);
  const ExchangeKind kind = draw.kind();
  const auto begin_of = [&](uint32_t block) {
    return draw.num_vectors() * block / member.view.num_blocks;
  };
  const uint32_t first = begin_of(thread.block);
  const ExchangeRow row = {first, begin_of(thread.block + 1) - first};
  const auto load = [&](uint32_t v) { return draw.part_vector(member.view.rank, first + v); };
  int num_wrong = 0;
  const auto keep = [&](uint32_t v, const Vector4& sum) {
    const uint32_t found[] = {sum.x, sum.y, sum.z, sum.w};
    for (uint32_t i = 0; i < 4; ++i) {
      num_wrong += found[i] == bits_of(draw.sum(member.view.size, 4 * (first + v) + i)) ? 0 : 1;
    }
  };
  Round round(member.view, kind, thread, draw.num_vectors());
  round.send(row, load);
  round.clear();
  round.fold_share(row, load);
  round.collect(row, load, keep);
  meet();
  if (thread.thread == 0) round.end();
  meet();
  return num_wrong;
}

void on_all_threads(int32_t size,
                    uint32_t num_threads,
                    const std::function<void(Member&, uint32_t)>& body,
                    std::deque<Member>& members) {
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r) {
    for (uint32_t t = 0; t < num_threads; ++t) {
      threads.emplace_back([&, r, t] { body(members[static_cast<size_t>(r)], t); });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

class ExchangeProtocol : public ::testing::TestWithParam<int32_t> {};

TEST_P(ExchangeProtocol, SumsAreRightHoweverRanksAreHeldUp) {
  const int32_t size = GetParam();
  const uint64_t rounds = number_from("OUTRIDER_EXCHANGE_ROUNDS", 2000);
  std::deque<Member> members = make_members(size, kLongNs);
  std::atomic<int> num_wrong = 0;
  on_all_threads(
      size,
      1,
      [&](Member& member, uint32_t) {
        uint64_t delays = mix_seed(5 + seed(), static_cast<uint64_t>(member.view.rank));
        for (uint64_t round = 0; round < rounds; ++round) {
          num_wrong += run_round(member, round, {}, [] {});
          delays = mix_seed(delays, round);
          if (delays % 256 == 0) std::this_thread::yield();
          if (delays % 4096 == 1) {
            std::this_thread::sleep_for(std::chrono::microseconds(delays >> 40 & 255));
          }
        }
      },
      members);
  EXPECT_EQ(num_wrong, 0);
  for (const Member& member : members) EXPECT_EQ(member.report.is_broken, 0u);
}

// Two of each: threads of a block, blocks of a launch.
TEST_P(ExchangeProtocol, ARankMayHaveManyThreads) {
  const int32_t size = GetParam();
  constexpr uint32_t kThreads = 4;
  std::deque<Member> members = make_members(size, kLongNs, 2);
  std::deque<std::barrier<>> barriers;
  for (int32_t r = 0; r < size; ++r) barriers.emplace_back(kThreads);
  std::atomic<int> num_wrong = 0;
  on_all_threads(
      size,
      kThreads,
      [&](Member& member, uint32_t t) {
        auto& barrier = barriers[static_cast<size_t>(member.view.rank)];
        const ExchangeThread thread = {.block = t / 2, .thread = t % 2, .num_threads = 2};
        for (uint64_t round = 0; round < 500; ++round) {
          num_wrong += run_round(member, round, thread, [&] { barrier.arrive_and_wait(); });
        }
      },
      members);
  EXPECT_EQ(num_wrong, 0);
}

// Whoever waits looks and does nothing else.
TEST(ExchangePrefetch, IsForBlocksWithoutRows) {
  constexpr uint32_t kLines = 20;
  constexpr uint64_t kLimitNs = 1000000;
  static const unsigned char next[kLines * 128 - 1] = {};
  const ExchangeKind kind = {.next = next, .next_bytes = sizeof next};
  const ExchangeRow row = {0, 1};
  const auto load = [](uint32_t) { return Vector4{1, 2, 3, 4}; };
  const auto keep = [](uint32_t, const Vector4&) {};
  std::vector<const void*>& prefetched = HostMemory::prefetched;

  std::deque<Member> alone = make_members(1, kLimitNs, 2);
  prefetched.clear();
  Round(alone[0].view, kind, {}, 1).collect(row, load, keep);
  EXPECT_TRUE(prefetched.empty());
  for (const uint32_t block : {0u, 1u}) Round(alone[0].view, kind, {.block = block}, 1).prefetch();
  const std::set<const void*> lines(prefetched.begin(), prefetched.end());
  EXPECT_EQ(prefetched.size(), kLines);
  EXPECT_EQ(lines.size(), kLines);

  std::deque<Member> left_alone = make_members(2, kLimitNs, 2);
  prefetched.clear();
  Round(left_alone[0].view, kind, {}, 1).collect(row, load, keep);
  EXPECT_EQ(left_alone[0].report.is_part_late[1], 1u);
  EXPECT_TRUE(prefetched.empty());
}

TEST_P(ExchangeProtocol, TheOthersLeaveADeadRankAndNameIt) {
  const int32_t size = GetParam();
  constexpr uint64_t kLimitNs = uint64_t{2} * 1000000000;
  std::deque<Member> members = make_members(size, kLongNs);
  const int32_t dead = size / 2;
  const uint64_t last_round = 300 + mix_seed(9, seed()) % 512;
  std::atomic<int> num_wrong = 0;
  std::atomic<int> num_ended = 0;
  on_all_threads(
      size,
      1,
      [&](Member& member, uint32_t) {
        for (uint64_t round = 0; round < 1000; ++round) {
          if (round == last_round) {
            if (member.view.rank == dead) return;
            // Not sooner: a machine that holds up a rank that lives does not end a round.
            member.view.limit_ns = kLimitNs;
            member.view.sums_limit_ns = kLimitNs + kLimitNs / 8;
          }
          const int wrong = run_round(member, round, {}, [] {});
          if (member.report.is_broken != 0) break;
          num_wrong += wrong;
        }
        ++num_ended;
        // What follows does not wait at all.
        for (uint64_t round = 0; round < 2000; ++round) run_round(member, round, {}, [] {});
      },
      members);
  EXPECT_EQ(num_wrong, 0);
  EXPECT_EQ(num_ended, size - 1);
  uint32_t num_who_name_it = 0;
  for (const Member& member : members) {
    if (member.view.rank == dead) continue;
    EXPECT_EQ(member.report.is_broken, 1u);
    // Of a short sum the dead rank may have had to fold all: then nobody waits for its part.
    const bool has_late_sums = member.report.are_sums_late[dead] != 0;
    num_who_name_it += member.report.is_part_late[dead] != 0 || has_late_sums ? 1 : 0;
    for (int32_t r = 0; r < size; ++r) {
      const bool is_named = member.report.is_part_late[r] != 0;
      EXPECT_FALSE(is_named && r != dead) << r << " by " << member.view.rank;
    }
  }
  EXPECT_GT(num_who_name_it, 0u);
}

TEST_P(ExchangeProtocol, TheHostsStopEndsAWait) {
  const int32_t size = GetParam();
  std::deque<Member> members = make_members(size, kLongNs);
  std::atomic<int> num_in_last_round = 0;
  std::thread host([&] {
    while (num_in_last_round < size - 1) std::this_thread::yield();
    // Rank 0 may still be taking in what the others sent.
    for (size_t r = 1; r < members.size(); ++r) HostMemory().store(&members[r].report.stop, 1);
  });
  on_all_threads(
      size,
      1,
      [&](Member& member, uint32_t) {
        for (uint64_t round = 0; round < 50; ++round) run_round(member, round, {}, [] {});
        if (member.view.rank == 0) return;
        ++num_in_last_round;
        run_round(member, 50, {}, [] {});
      },
      members);
  host.join();
  for (const Member& member : members) {
    EXPECT_EQ(member.report.is_broken, member.view.rank == 0 ? 0u : 1u);
    for (const uint32_t late : member.report.is_part_late) EXPECT_EQ(late, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExchangeProtocol, ::testing::Values(2, 4, 8));

}  // namespace
}  // namespace outrider::gpu
