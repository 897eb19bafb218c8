// Some members of a TargetGroup as a group of their own, while all the others do the same in
// theirs: the ranks of each host, or those with the same place on every host. Everything goes
// through the whole group, whose members must all call the same verbs with the same sizes, each in
// its subgroup: meant for setting things up, and for what may be slow.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/group/target_group.h"

namespace outrider {

class Subgroup final : public TargetGroup {
 public:
  // Members first, first + step, ... of `whole`, which must outlive it; this rank is one of them.
  Subgroup(TargetGroup& whole, int first, int step, int size);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce_sum(std::span<float> values, Fold fold) override;
  void all_reduce_sum(std::span<uint64_t> values) override;
  void all_reduce_max(std::span<uint64_t> values) override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;

  // step() sets something up in each subgroup. When it throws an Error on one member of the whole,
  // all members throw it, wherever in their step() they are.
  template <typename Step>
  void set_up(const Step& step) {
    std::string problem;
    is_setting_up_ = true;
    try {
      step();
    } catch (const Error& error) {
      problem = error.what();
    }
    if (heard_.empty()) announce(problem, 0);
    if (!heard_.empty()) throw Error(heard_);
    is_setting_up_ = false;
  }

 private:
  // Before each verb of a step, and at its end: nobody goes on when somebody has a problem.
  void announce(const std::string& problem, size_t num_bytes);
  void gather(std::span<const std::byte> mine);  // into parts_, [size_, mine.size()]
  template <typename T, typename Op>
  void reduce(std::span<T> values, const Op& op);

  TargetGroup& whole_;
  const int first_;
  const int step_;
  const int size_;
  const int rank_;
  bool is_setting_up_ = false;
  std::string heard_;
  std::vector<std::byte> of_all_;
  std::vector<uint64_t> parts_;  // for any type of element
};

}  // namespace outrider
