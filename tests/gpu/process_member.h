// Ranks of a group that are processes on one GPU, whatever they sum with: what each of them has,
// and what is seen of all when one is killed.
#pragma once

#include <csignal>
#include <cstdio>

#include "runtime/base/error.h"
#include "tests/comm/device_group_checks.h"
#include "tests/comm/processes.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::test {

// A rank with its place in the group.
struct ProcessMember {
  explicit ProcessMember(SocketWorld& world) : over_host(world.make_target_group(world.size())) {}
  std::unique_ptr<gpu::Device> device = gpu::test_backend().open(0);
  std::unique_ptr<gpu::Stream> stream = device->make_stream(gpu::Priority::kNormal);
  std::unique_ptr<TargetGroup> over_host;
  std::unique_ptr<DeviceGroup> group;
};

inline void check_replays(ProcessMember& member, size_t count, unsigned num_replays) {
  DeviceGroup& group = *member.group;
  const gpu::Buffer values(*member.device, count * sizeof(float));
  member.stream->begin_recording();
  group.all_reduce_sum(*member.stream, values.as<float>(), count, Fold::kTree);
  const auto graph = member.stream->end_recording();
  for (unsigned draw = 1000; draw < 1000 + num_replays; ++draw) {
    std::vector<float> host = values_of(group.rank(), draw, count);
    member.device->upload_now(values.data(), host.data(), count * sizeof(float));
    member.stream->replay(*graph);
    group.wait(*member.stream);
    member.device->download_now(host.data(), values.data(), count * sizeof(float));
    EXPECT_EQ(first_difference(host, expected_sum(group.size(), draw, count, Fold::kTree)), -1);
  }
}

// What a rank hears when it sums until that goes wrong, while rank 1 dies in the midst of sums.
inline std::string sums_until_error(SocketWorld& world, ProcessMember& member, Fold fold) {
  if (world.rank() == 1) die_at_count(world, 20);
  const std::vector<float> ones(64, 1.0f);
  const gpu::Buffer values(*member.device, 64 * sizeof(float));
  try {
    while (true) {
      member.device->upload_now(values.data(), ones.data(), 64 * sizeof(float));
      member.group->all_reduce_sum(*member.stream, values.as<float>(), 64, fold);
      member.group->wait(*member.stream);
      if (world.rank() == 0) ++world.board().count;
    }
  } catch (const Error& error) {
    return error.what();
  }
}

// Of rank 1; says how long the others went on.
inline void expect_killed(const std::vector<EndedRank>& ended) {
  EXPECT_EQ(ended[1].signal, SIGKILL) << ended[1].output;
  EXPECT_FALSE(ended[1].is_late);
  for (size_t r = 0; r < ended.size(); ++r) {
    if (r == 1) continue;
    std::printf("rank %zu ended %.0f ms after rank 1 had died\n",
                r,
                1000 * (ended[r].ended_s - ended[1].ended_s));
  }
}

}  // namespace outrider::test
