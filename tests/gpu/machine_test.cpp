// The emulated device itself: it must catch what a real one would do wrong.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/tiles.h"
#include "tests/emulated/emulated.h"

namespace outrider::gpu {
namespace {

struct ReverseArgs {
  const int* in;
  int* out;
  bool synced;
};

void reverse_block(ReverseArgs args) {
  int* shared = shared_memory<int>();
  shared[thread_id()] = args.in[thread_id()];
  if (args.synced) sync_block();
  args.out[thread_id()] = shared[num_threads() - 1 - thread_id()];
}

class Machine : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device = emulated::backend().open(0);
  std::unique_ptr<Stream> stream = device->make_stream(Priority::kNormal);
};

TEST_F(Machine, AMissingSyncShows) {
  std::vector<int> in(64);
  for (int i = 0; i < 64; ++i) in[static_cast<size_t>(i)] = i + 1;
  const LaunchShape shape = {.threads = 64, .shared_bytes = 256};
  const std::vector<int> expected(in.rbegin(), in.rend());
  std::vector<int> out(64);
  launch(*stream, reverse_block, shape, ReverseArgs{in.data(), out.data(), true});
  EXPECT_EQ(out, expected);
  launch(*stream, reverse_block, shape, ReverseArgs{in.data(), out.data(), false});
  EXPECT_NE(out, expected);
}

struct MeetArgs {
  uint32_t* arrived;  // by block
  uint32_t* num_met;
};

// Every block waits for every other.
void meet(MeetArgs args) {
  constexpr uint64_t kLimitNs = uint64_t{30} * 1000000000;
  const WatchedMemory memory;
  const uint64_t begin = memory.now_ns();
  memory.store(args.arrived + block_id().x, 1);
  for (uint32_t block = 0; block < num_blocks().x; ++block) {
    while (memory.load(args.arrived + block) == 0) {
      if (memory.now_ns() - begin > kLimitNs) throw Error("a block has not come");
      memory.pause();
    }
  }
  sync_block();
  if (thread_id() == 0) atomic_next(args.num_met);
}

TEST_F(Machine, BlocksThatWaitRunAtOnce) {
  for (const uint32_t num_blocks : {3u, 1u, 5u, 2u}) {
    std::vector<uint32_t> arrived(num_blocks);
    uint32_t num_met = 0;
    launch(*stream,
           meet,
           {.grid = {num_blocks}, .threads = 64, .blocks_wait = true},
           MeetArgs{arrived.data(), &num_met});
    EXPECT_EQ(num_met, num_blocks);
  }
}

TEST_F(Machine, WhatOneOfThemThrowsIsHeard) {
  struct Who {
    uint32_t block;
  };
  const auto fail = +[](Who who) {
    if (block_id().x == who.block) throw Error("block " + std::to_string(who.block));
  };
  for (uint32_t block = 0; block < 3; ++block) {
    const LaunchShape shape = {.grid = {3}, .threads = 32, .blocks_wait = true};
    EXPECT_THROW(launch(*stream, fail, shape, Who{block}), Error);
    EXPECT_NO_THROW(launch(*stream, fail, shape, Who{7}));
  }
}

struct Nothing {};

TEST_F(Machine, WaitingForThreadsThatNeverComeIsAnError) {
  const LaunchShape shape = {.threads = 64};
  const auto half_block = +[](Nothing) {
    if (thread_id() < 32) sync_block();
  };
  EXPECT_THROW(launch(*stream, half_block, shape, Nothing{}), Error);
  const auto half_warp = +[](Nothing) {
    if (lane_id() < 16) sync_warp();
  };
  EXPECT_THROW(launch(*stream, half_warp, shape, Nothing{}), Error);
  const auto two_operations = +[](Nothing) {
    if (lane_id() < 16) {
      sync_warp();
    } else {
      ballot(true);
    }
  };
  EXPECT_THROW(launch(*stream, two_operations, shape, Nothing{}), Error);
}

// Each half of the block turns its own numbers round, the second as often again.
TEST_F(Machine, GroupsOfWarpsMeetByThemselves) {
  const LaunchShape shape = {.threads = 128, .shared_bytes = 512};
  std::vector<uint32_t> out(128);
  launch(
      *stream,
      +[](uint32_t* to) {
        auto* shared = shared_memory<uint32_t>();
        uint32_t value = thread_id();
        for (uint32_t turn = 0; turn <= thread_id() / 64; ++turn) {
          sync_group(64);
          shared[thread_id()] = value;
          sync_group(64);
          value = shared[thread_id() ^ 63];
        }
        sync_block();
        to[thread_id()] = value;
      },
      shape,
      out.data());
  for (uint32_t t = 0; t < 128; ++t) EXPECT_EQ(out[t], t < 64 ? t ^ 63 : t) << t;
  const auto of_two_sizes = +[](uint32_t*) {
    if (warp_id() == 0) {
      sync_group(32);
    } else {
      sync_group(thread_id() < 64 ? 64 : 32);
    }
  };
  EXPECT_THROW(launch(*stream, of_two_sizes, shape, out.data()), Error);
}

struct CopyArgs {
  const uint32_t* in;
  uint32_t* out;
  bool waits;
};

void copy_through_shared(CopyArgs args) {
  auto* shared = shared_memory<uint32_t>();
  copy_async_16(shared + 4 * thread_id(), args.in + 4 * thread_id());
  end_copy_group();
  if (args.waits) wait_copies<0>();
  for (uint32_t i = 0; i < 4; ++i) {
    args.out[4 * thread_id() + i] = shared[4 * thread_id() + i];
  }
}

TEST_F(Machine, AnAsynchronousCopyWantsToBeWaitedFor) {
  std::vector<uint32_t> in(128);
  for (uint32_t i = 0; i < 128; ++i) in[i] = 7 * i;
  std::vector<uint32_t> out(128);
  const LaunchShape shape = {.threads = 32, .shared_bytes = 512};
  launch(*stream, copy_through_shared, shape, CopyArgs{in.data(), out.data(), true});
  EXPECT_EQ(out, in);
  launch(*stream, copy_through_shared, shape, CopyArgs{in.data(), out.data(), false});
  EXPECT_NE(out, in);
}

TEST_F(Machine, RecordedWorkRunsAtEachReplay) {
  auto* counter = static_cast<uint32_t*>(device->allocate_pinned(4));
  stream->begin_recording();
  launch(
      *stream,
      +[](uint32_t* to) {
        if (thread_id() == 0) atomic_add(to, 1u);
      },
      {.grid = {3}, .threads = 32},
      counter);
  const std::unique_ptr<Graph> graph = stream->end_recording();
  EXPECT_EQ(*counter, 0u);
  stream->replay(*graph);
  stream->replay(*graph);
  EXPECT_EQ(*counter, 6u);
  device->free_pinned(counter);
}

// Packed fragments through the matrix instruction give the product: the maps of tiles.h agree with
// the instruction.
struct TileArgs {
  const uint16_t* weights;
  const uint16_t* rows;
  float* out;  // [8 rows, 16 outputs]
};

TEST_F(Machine, FragmentsMultiply) {
  std::vector<uint16_t> weights(256);
  std::vector<uint16_t> rows(128);
  std::vector<float> expected(128);
  const auto weight = [](int out, int k) { return static_cast<float>((out * 5 + k * 3) % 11 - 5); };
  const auto input = [](int row, int k) { return static_cast<float>((row * 7 + k) % 9 - 4); };
  for (int k = 0; k < 16; ++k) {
    for (int out = 0; out < 16; ++out) {
      weights.at(weight_offset(out, k, 16, sizeof(uint16_t))) = ops::float_to_bf16(weight(out, k));
    }
    for (int row = 0; row < 8; ++row) {
      rows.at(activation_offset(row, k, 16)) = ops::float_to_bf16(input(row, k));
      for (int out = 0; out < 16; ++out) {
        expected[static_cast<size_t>(row * 16 + out)] += weight(out, k) * input(row, k);
      }
    }
  }
  std::vector<float> out(128);
  launch(
      *stream,
      +[](TileArgs args) {
        float sums[4] = {};
        const auto a = reinterpret_cast<const Vector4*>(args.weights)[weight_slot(lane_id())];
        const auto b = reinterpret_cast<const Vector2*>(args.rows)[activation_slot(lane_id())];
        multiply_bf16(sums, a, b);
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t output = lane_id() / 4 + i / 2 * 8;
          const uint32_t row = lane_id() % 4 * 2 + i % 2;
          args.out[row * 16 + output] = sums[i];
        }
      },
      {.threads = 32},
      TileArgs{weights.data(), rows.data(), out.data()});
  EXPECT_EQ(out, expected);
}

TEST(Tiles, EveryElementHasOnePlace) {
  std::set<size_t> seen;
  for (const size_t element_bytes : {1, 2}) {
    seen.clear();
    for (int32_t row = 0; row < 48; ++row) {
      for (int32_t k = 0; k < 40; ++k) seen.insert(weight_offset(row, k, 40, element_bytes));
    }
    EXPECT_EQ(seen.size(), 48u * 40u);
    EXPECT_LT(*seen.rbegin(), weight_elements(48, 40));
  }
  seen.clear();
  for (int32_t row = 0; row < 24; ++row) {
    for (int32_t k = 0; k < 40; ++k) seen.insert(activation_offset(row, k, 40));
  }
  EXPECT_EQ(seen.size(), 24u * 40u);
  EXPECT_LT(*seen.rbegin(), activation_elements(24, 40));
}

TEST(Tiles, OrdersPutPartnersEightApart) {
  for (const auto& [order, span] : {std::pair{RowOrder::kPairs, 48}, {RowOrder::kHalves, 16}}) {
    std::set<int32_t> seen;
    for (int32_t out = 0; out < 96; ++out) {
      const int32_t row = weight_row(out, order, span);
      seen.insert(row);
      if (out % (2 * span) >= span) continue;
      EXPECT_EQ(weight_row(out + span, order, span), row + 8);
    }
    EXPECT_EQ(seen.size(), 96u);
    EXPECT_EQ(*seen.rbegin(), 95);
  }
}

}  // namespace
}  // namespace outrider::gpu
