// See subgroup.h.
#include "runtime/comm/group/subgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/numbers/fold_tree.h"
#include "runtime/comm/group/agreed_setup.h"

namespace outrider {

Subgroup::Subgroup(TargetGroup& whole, int first, int step, int size)
    : whole_(whole), first_(first), step_(step), size_(size), rank_((whole.rank() - first) / step) {
  OUTRIDER_CHECK(first >= 0 && step > 0 && size > 0 && first + step * (size - 1) < whole.size());
  OUTRIDER_CHECK(rank_ < size && first + step * rank_ == whole.rank());
}

void Subgroup::announce(const std::string& problem, size_t num_bytes) {
  struct Notice {
    std::array<char, 512> problem{};
    uint64_t num_bytes = 0;
  };
  Notice mine = {.num_bytes = num_bytes};
  problem.copy(mine.problem.data(), mine.problem.size() - 1);
  const auto notices = gather_values(whole_, mine);
  for (const Notice& notice : notices) {
    if (notice.problem[0] != '\0') {
      heard_ = notice.problem.data();
      throw Error(heard_);
    }
  }
  for (const Notice& notice : notices) OUTRIDER_CHECK(notice.num_bytes == num_bytes);
}

void Subgroup::gather(std::span<const std::byte> mine) {
  if (is_setting_up_) announce("", mine.size());
  of_all_.resize(mine.size() * static_cast<size_t>(whole_.size()));
  whole_.all_gather(mine, of_all_);
  parts_.resize((mine.size() * static_cast<size_t>(size_) + 7) / 8);
  auto* to = reinterpret_cast<std::byte*>(parts_.data());
  for (int r = 0; r < size_; ++r, to += mine.size()) {
    const auto member = static_cast<size_t>(first_ + step_ * r);
    std::copy_n(of_all_.data() + member * mine.size(), mine.size(), to);
  }
}

void Subgroup::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  OUTRIDER_CHECK(all.size() == mine.size() * static_cast<size_t>(size_));
  gather(mine);
  std::copy_n(reinterpret_cast<const std::byte*>(parts_.data()), all.size(), all.data());
}

template <typename T, typename Op>
void Subgroup::reduce(std::span<T> values, const Op& op) {
  gather(std::as_bytes(values));
  const T* const parts = reinterpret_cast<const T*>(parts_.data());
  std::copy_n(parts, values.size(), values.begin());
  for (size_t r = 1; r < static_cast<size_t>(size_); ++r) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = op(values[i], parts[r * values.size() + i]);
    }
  }
}

void Subgroup::all_reduce_sum(std::span<float> values, Fold fold) {
  if (fold == Fold::kRankOrder) {
    reduce(values, [](float a, float b) { return a + b; });
    return;
  }
  gather(std::as_bytes(values));
  auto* const parts = reinterpret_cast<float*>(parts_.data());
  fold_in_tree(parts, static_cast<size_t>(size_), values.size());
  std::copy_n(parts, values.size(), values.begin());
}

void Subgroup::all_reduce_sum(std::span<uint64_t> values) {
  reduce(values, [](uint64_t a, uint64_t b) { return a + b; });
}

void Subgroup::all_reduce_max(std::span<uint64_t> values) {
  reduce(values, [](uint64_t a, uint64_t b) { return std::max(a, b); });
}

}  // namespace outrider
