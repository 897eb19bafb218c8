// The group over NCCL between processes on one GPU, each a host of its own to NCCL, over sockets on
// the loopback (nccl_ways.h): on a real device the real library, on the emulated one the fake,
// whose members then are processes, too.
#include <gtest/gtest.h>

#include <csignal>

#include "runtime/comm/device/nccl_group.h"
#include "runtime/comm/device/nccl_library.h"
#include "tests/comm/device_group_checks.h"
#include "tests/comm/processes.h"
#include "tests/gpu/nccl_ways.h"

namespace outrider::test {
namespace {

constexpr double kMostS = 100;
constexpr size_t kMaxCount = 64;

struct Shape {
  int num_ranks = 2;
  NcclWay way = NcclWay::kHostIds;
};

class NcclProcesses : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
#ifndef FAKE_NCCL
    if (gpu::is_emulated()) GTEST_SKIP() << "no nccl.h when this was built";
#endif
    if (gpu::is_emulated() && GetParam().way == NcclWay::kSharedGpu) {
      GTEST_SKIP() << "the fake NCCL has but one way";
    }
    pin_nccl_settings();
  }
};

// Of a wait for other ranks. The fake's calls are looked at while they last: a limit beyond the
// test's own shows that it is not needed. NCCL itself may say nothing of a dead rank before it.
double limit_s() { return gpu::is_emulated() ? 1000 : 4; }

// A rank with its place in the group.
struct Member {
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::Stream> stream;
  std::unique_ptr<TargetGroup> over_host;
  std::unique_ptr<DeviceGroup> group;

  Member(SocketWorld& world, NcclWay way) {
    set_nccl_way(way, world.rank());
    device = gpu::test_backend().open(0);
    stream = device->make_stream(gpu::Priority::kNormal);
    over_host = world.make_target_group(world.size());
    NcclOptions options = {.max_count = kMaxCount, .limit_s = limit_s(), .init_limit_s = 30};
    options.check_alive = [&world] { world.check_alive(world.size()); };
    group = make_nccl_group(*device, gpu::test_backend(), *over_host, options);
  }
};

// Of which every sum is exact, in whatever order.
std::vector<float> whole_numbers(int rank, unsigned draw, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13 + draw * 5) % 256);
  }
  return values;
}

std::vector<float> sum_of_group(Member& member, std::vector<float> values, Fold fold) {
  const size_t num_bytes = values.size() * sizeof(float);
  const gpu::Buffer on_device(*member.device, num_bytes);
  member.device->upload_now(on_device.data(), values.data(), num_bytes);
  member.group->all_reduce_sum(*member.stream, on_device.as<float>(), values.size(), fold);
  member.group->wait(*member.stream);
  member.device->download_now(values.data(), on_device.data(), num_bytes);
  return values;
}

// Bits where the order is ours: in a tree, and of two ranks in any order. NCCL's own order of three
// is nobody's business.
void check_all_sums(Member& member) {
  DeviceGroup& group = *member.group;
  unsigned draw = 1;
  for (const size_t count : {size_t{150}, size_t{1}, size_t{64}, size_t{2001}}) {
    for (const Fold fold : {Fold::kRankOrder, Fold::kTree}) {
      ++draw;
      const bool is_ours = fold == Fold::kTree || group.size() == 2;
      const std::vector<float> host =
          is_ours ? values_of(group.rank(), draw, count) : whole_numbers(group.rank(), draw, count);
      std::vector<float> expected = expected_sum(group.size(), draw, count, fold);
      if (!is_ours) {
        std::fill(expected.begin(), expected.end(), 0.0f);
        for (int r = 0; r < group.size(); ++r) {
          const std::vector<float> part = whole_numbers(r, draw, count);
          for (size_t i = 0; i < count; ++i) expected[i] += part[i];
        }
      }
      EXPECT_EQ(first_difference(sum_of_group(member, host, fold), expected), -1)
          << "rank " << group.rank() << " " << count;
    }
  }
}

// The fake sums as it is called: nothing of it can be recorded.
void check_replays(Member& member) {
  if (gpu::is_emulated()) return;
  DeviceGroup& group = *member.group;
  const gpu::Buffer values(*member.device, kMaxCount * sizeof(float));
  member.stream->begin_recording();
  group.all_reduce_sum(*member.stream, values.as<float>(), kMaxCount, Fold::kTree);
  const auto graph = member.stream->end_recording();
  for (unsigned draw = 1000; draw < 1010; ++draw) {
    std::vector<float> host = values_of(group.rank(), draw, kMaxCount);
    member.device->upload_now(values.data(), host.data(), kMaxCount * sizeof(float));
    member.stream->replay(*graph);
    group.wait(*member.stream);
    member.device->download_now(host.data(), values.data(), kMaxCount * sizeof(float));
    EXPECT_EQ(first_difference(host, expected_sum(group.size(), draw, kMaxCount, Fold::kTree)), -1);
  }
}

// That a way does not work on this machine is no fault of ours.
bool is_refused(const std::vector<EndedRank>& ended) {
  return !gpu::is_emulated() && ended[0].error.find("NCCL cannot be used") == 0;
}

TEST_P(NcclProcesses, Sum) {
  const auto ended = run_in_processes(GetParam().num_ranks, kMostS, [&](SocketWorld& world) {
    Member member(world, GetParam().way);
    check_all_sums(member);
    check_sum_and_norm(*member.group,
                       *member.device,
                       gpu::test_backend().ops,
                       *member.stream,
                       1,
                       24,
                       [&](int, unsigned draw, size_t count, Fold fold) {
                         return sum_of_group(member, values_of(world.rank(), draw, count), fold);
                       });
    check_replays(member);
    meeting_of (*member.over_host)();
    return member.group->name();
  });
  if (is_refused(ended)) GTEST_SKIP() << ended[0].error << "\n" << ended[0].output;
  expect_fine(ended);
  for (const EndedRank& rank : ended) EXPECT_EQ(rank.answer.substr(0, 5), "nccl ");
}

TEST_P(NcclProcesses, NameOneThatIsKilledInTheMidstOfSums) {
  const auto ended =
      run_in_processes(GetParam().num_ranks, kMostS, [&](SocketWorld& world) -> std::string {
        Member member(world, GetParam().way);
        if (world.rank() == 1) die_at_count(world, 20);
        const gpu::Buffer values(*member.device, kMaxCount * sizeof(float));
        try {
          while (true) {
            const std::vector<float> ones(kMaxCount, 1.0f);
            member.device->upload_now(values.data(), ones.data(), kMaxCount * sizeof(float));
            member.group->all_reduce_sum(
                *member.stream, values.as<float>(), kMaxCount, Fold::kTree);
            member.group->wait(*member.stream);
            if (world.rank() == 0) ++world.board().count;
          }
        } catch (const Error& error) {
          return error.what();
        }
      });
  if (is_refused(ended)) GTEST_SKIP() << ended[0].error << "\n" << ended[0].output;
  EXPECT_EQ(ended[1].signal, SIGKILL) << ended[1].output;
  EXPECT_FALSE(ended[1].is_late);
  for (size_t r = 0; r < ended.size(); ++r) {
    if (r == 1) continue;
    expect_fine({ended[r]});
    EXPECT_EQ(ended[r].answer.substr(0, 16), "rank 1 (process ") << ended[r].answer;
    EXPECT_NE(ended[r].answer.find(") is gone"), std::string::npos) << ended[r].answer;
    std::printf("rank %zu ended %.0f ms after rank 1 had died\n",
                r,
                1000 * (ended[r].ended_s - ended[1].ended_s));
  }
}

INSTANTIATE_TEST_SUITE_P(,
                         NcclProcesses,
                         ::testing::Values(Shape{2, NcclWay::kHostIds},
                                           Shape{3, NcclWay::kHostIds},
                                           Shape{4, NcclWay::kHostIds},  // a tree of its own
                                           Shape{2, NcclWay::kSharedGpu}),
                         [](const auto& test) {
                           return std::to_string(test.param.num_ranks) + "Ranks" +
                                  (test.param.way == NcclWay::kHostIds ? "HostIds" : "SharedGpu");
                         });

}  // namespace
}  // namespace outrider::test
