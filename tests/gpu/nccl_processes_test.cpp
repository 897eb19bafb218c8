// The group over NCCL between processes on one GPU, each a host of its own to NCCL, over sockets on
// the loopback (nccl_ways.h): on a real device the real library, on the emulated one the fake,
// whose members then are processes, too.
#include <gtest/gtest.h>

#include "runtime/comm/device/nccl_group.h"
#include "runtime/comm/device/nccl_library.h"
#include "tests/gpu/nccl_ways.h"
#include "tests/gpu/process_member.h"

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

ProcessMember member_of(SocketWorld& world, NcclWay way) {
  set_nccl_way(way, world.rank());
  ProcessMember member(world);
  NcclOptions options = {.max_count = kMaxCount, .limit_s = limit_s(), .init_limit_s = 30};
  options.check_alive = [&world] { world.check_alive(world.size()); };
  member.group = make_nccl_group(*member.device, gpu::test_backend(), *member.over_host, options);
  return member;
}

// Of which every sum is exact, in whatever order.
std::vector<float> whole_numbers(int rank, unsigned draw, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13 + draw * 5) % 256);
  }
  return values;
}

std::vector<float> sum_of_group(ProcessMember& member, std::vector<float> values, Fold fold) {
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
void check_all_sums(ProcessMember& member) {
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

// That a way does not work on this machine is no fault of ours.
bool is_refused(const std::vector<EndedRank>& ended) {
  return !gpu::is_emulated() && ended[0].error.find("NCCL cannot be used") == 0;
}

TEST_P(NcclProcesses, Sum) {
  const auto ended = run_in_processes(GetParam().num_ranks, kMostS, [&](SocketWorld& world) {
    ProcessMember member = member_of(world, GetParam().way);
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
    // The fake sums as it is called: nothing of it can be recorded.
    if (!gpu::is_emulated()) check_replays(member, kMaxCount, 10);
    meeting_of (*member.over_host)();
    return member.group->name();
  });
  if (is_refused(ended)) GTEST_SKIP() << ended[0].error << "\n" << ended[0].output;
  expect_fine(ended);
  for (const EndedRank& rank : ended) EXPECT_EQ(rank.answer.substr(0, 5), "nccl ");
}

TEST_P(NcclProcesses, NameOneThatIsKilledInTheMidstOfSums) {
  const auto ended = run_in_processes(GetParam().num_ranks, kMostS, [&](SocketWorld& world) {
    ProcessMember member = member_of(world, GetParam().way);
    return sums_until_error(world, member, Fold::kTree);
  });
  if (is_refused(ended)) GTEST_SKIP() << ended[0].error << "\n" << ended[0].output;
  expect_killed(ended);
  for (size_t r = 0; r < ended.size(); ++r) {
    if (r == 1) continue;
    expect_fine({ended[r]});
    EXPECT_EQ(ended[r].answer.substr(0, 16), "rank 1 (process ") << ended[r].answer;
    EXPECT_NE(ended[r].answer.find(") is gone"), std::string::npos) << ended[r].answer;
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
