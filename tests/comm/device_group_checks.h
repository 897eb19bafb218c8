// What every DeviceGroup must do, checked from one member's side against sums made here.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "runtime/base/numbers/fold_tree.h"
#include "runtime/comm/device/device_group.h"

namespace outrider::test {

// Member r's values of a draw: of both signs, of different sizes, with zeros of both signs.
inline std::vector<float> values_of(int rank, unsigned draw, size_t count) {
  std::mt19937 random(draw * 64 + static_cast<unsigned>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 21) - 10);
    const uint32_t kind = random() % 16;
    value = kind == 0 ? 0.0f : kind == 1 ? -0.0f : normal(random) * size;
  }
  return values;
}

inline std::vector<float> expected_sum(int num_ranks, unsigned draw, size_t count, Fold fold) {
  std::vector<float> slots;
  for (int r = 0; r < num_ranks; ++r) {
    const std::vector<float> values = values_of(r, draw, count);
    slots.insert(slots.end(), values.begin(), values.end());
  }
  const auto n = static_cast<size_t>(num_ranks);
  if (fold == Fold::kTree) {
    fold_in_tree(slots.data(), n, count);
  } else {
    for (size_t r = 1; r < n; ++r)
      for (size_t i = 0; i < count; ++i) slots[i] += slots[r * count + i];
  }
  slots.resize(count);
  return slots;
}

// Equal bits, but for a zero's sign. Returns the first place that differs, or -1.
inline ptrdiff_t first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (!(a[i] == b[i])) return static_cast<ptrdiff_t>(i);
  return -1;
}

// What the sum over so many ranks must be; expected_sum() unless a group has an order of its own.
using ExpectedSum = std::function<std::vector<float>(int, unsigned, size_t, Fold)>;

inline std::function<void()> meeting_of(TargetGroup& group) {
  return [&group] {
    uint64_t num_here = 1;
    group.all_reduce_sum(std::span(&num_here, 1));
  };
}

// meet(): comes back when all members have called it, before and after each sum. For members that
// share a real GPU: freeing memory waits for all that runs there, so for sums that wait for this
// member; and while one frees, no other can launch what a third waits for (of a hierarchical group
// one may end long before).
inline void check_sums(
    DeviceGroup& group,
    gpu::Device& device,
    gpu::Stream& stream,
    size_t most,
    const ExpectedSum& expected = expected_sum,
    const std::function<void()>& meet = [] {}) {
  constexpr size_t kNumBehind = 70;
  unsigned draw = 1;
  for (const size_t count : {most, size_t{1}, most / 2 + 3, size_t{5}, most, most - 1}) {
    for (const Fold fold : {Fold::kRankOrder, Fold::kTree}) {
      ++draw;
      // What lies behind the array stays as it is.
      const std::vector<float> behind(kNumBehind, 3);
      const size_t num_bytes = (count + kNumBehind) * sizeof(float);
      const gpu::Buffer values(device, num_bytes);
      std::vector<float> host = values_of(group.rank(), draw, count);
      host.insert(host.end(), behind.begin(), behind.end());
      device.upload_now(values.data(), host.data(), num_bytes);
      meet();
      group.all_reduce_sum(stream, values.as<float>(), count, fold);
      group.wait(stream);
      meet();
      device.download_now(host.data(), values.data(), num_bytes);
      const auto end = host.begin() + static_cast<ptrdiff_t>(count);
      EXPECT_EQ(std::vector<float>(end, host.end()), behind)
          << group.name() << " rank " << group.rank() << " count " << count;
      host.resize(count);
      EXPECT_EQ(first_difference(host, expected(group.size(), draw, count, fold)), -1)
          << group.name() << " rank " << group.rank() << " count " << count;
    }
  }
}

// sum_and_norm() against the op `norm` of the sum made here.
inline void check_sum_and_norm(
    DeviceGroup& group,
    gpu::Device& device,
    const gpu::OpTable& ops,
    gpu::Stream& stream,
    int32_t max_rows,
    int32_t n,
    const ExpectedSum& expected = expected_sum,
    const std::function<void()>& meet = [] {}) {
  const auto count = static_cast<size_t>(max_rows * n);
  const size_t num_bytes = count * sizeof(float);
  const gpu::Buffer counts(device, sizeof(gpu::StepCounts));
  const gpu::Buffer picked(device, sizeof(int32_t));
  const gpu::Buffer x(device, num_bytes), x_alone(device, num_bytes), part(device, num_bytes);
  const gpu::Buffer sum(device, num_bytes), out(device, num_bytes), out_alone(device, num_bytes);
  const gpu::Buffer weight(device, static_cast<size_t>(n) * sizeof(float));
  const auto put = [&](const gpu::Buffer& to, const std::vector<float>& from) {
    device.upload_now(to.data(), from.data(), from.size() * sizeof(float));
  };
  const auto get = [&](const gpu::Buffer& from, size_t num_floats) {
    std::vector<float> to(num_floats);
    device.download_now(to.data(), from.data(), num_floats * sizeof(float));
    return to;
  };
  for (int32_t num_rows = max_rows; num_rows > 0; num_rows = num_rows * 2 / 3) {
    for (const bool selected : {false, true}) {
      const auto draw = 100u + static_cast<unsigned>(num_rows) * 2 + (selected ? 1u : 0u);
      const Fold fold = num_rows % 2 == 0 ? Fold::kTree : Fold::kRankOrder;
      const gpu::StepCounts step = {.num_rows = num_rows, .num_logit_rows = 1};
      const int32_t last_row = num_rows - 1;
      device.upload_now(counts.data(), &step, sizeof step);
      device.upload_now(picked.data(), &last_row, sizeof last_row);
      put(x, values_of(50, draw, count));
      put(x_alone, values_of(50, draw, count));
      put(weight, values_of(51, draw, static_cast<size_t>(n)));
      put(part, values_of(group.rank(), draw, count));
      put(sum, expected(group.size(), draw, count, fold));
      gpu::NormArgs norm = {
          .out = {out_alone.data(), gpu::Type::kF32, n},
          .x = x_alone.as<float>(),
          .part = sum.as<float>(),
          .weight = weight.as<float>(),
          .eps = 1e-5f,
          .selected = selected,
          .max_rows = max_rows,
          .step = {.counts = counts.as<gpu::StepCounts>(), .logit_rows = picked.as<int32_t>()}};
      ops.norm(stream, norm);
      norm.out.data = out.data();
      norm.x = x.as<float>();
      norm.part = nullptr;
      meet();
      group.sum_and_norm(stream, {.norm = norm, .part = part.as<float>(), .fold = fold});
      group.wait(stream);
      meet();
      const auto used = static_cast<size_t>((selected ? 1 : num_rows) * n);
      EXPECT_EQ(first_difference(get(out, used), get(out_alone, used)), -1)
          << group.name() << " rank " << group.rank() << " rows " << num_rows;
      const auto kept = static_cast<size_t>(num_rows * n);
      EXPECT_EQ(first_difference(get(x, kept), get(x_alone, kept)), -1)
          << group.name() << " rank " << group.rank() << " rows " << num_rows;
    }
  }
}

}  // namespace outrider::test
