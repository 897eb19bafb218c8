// What the ranks of a job say to each other in a round, message by message, each as something that
// can be run, timed and checked. Used by `bench comm` on every target rank, and by its tests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/world/world.h"

namespace outrider {

struct CommSizes {
  int32_t hidden_dim = 0;
  int32_t vocab_size = 0;
  std::vector<int32_t> rows;      // of steps whose partial sums are exchanged
  std::vector<int32_t> num_seqs;  // of rounds that are planned, drafted for and sampled
  int32_t draft_len = 0;          // at least 1
  int32_t num_candidates = 0;     // sent with a draft token
  Fold fold = Fold::kRankOrder;   // of partial sums
};

struct CommCase {
  std::string message;  // "partial sums"
  std::string x_name;   // "rows" or "sequences"
  int32_t x = 0;
  // As nccl-tests count: of an all_reduce what a rank gives; of an all_gather what each gets; of a
  // message and its answer both together.
  size_t num_bytes = 0;
  size_t count = 0;  // elements of num_bytes
  std::string type;
  std::string redop;  // "none" where nothing is reduced
  // Bus bandwidth by algorithm bandwidth: what a link carries of each byte, as nccl-tests define
  // it.
  double bus_factor = 1;
  // One exchange; every rank calls it. Ranks that take no part return at once.
  std::function<void()> run;
  // One exchange of values that depend on turn, rank and place; the number of elements that came
  // to this rank and are not, bit for bit, what they must be.
  std::function<uint64_t(uint64_t turn)> num_wrong;
  // Where run() only queues: until all that was queued is done. Else empty.
  std::function<void()> finish = {};
};

// Of a job in which all ranks are targets, at least two. The draft's part is played by the last
// rank. world and group must outlive the cases.
std::vector<CommCase> comm_cases(World& world, TargetGroup& group, const CommSizes& sizes);

}  // namespace outrider
