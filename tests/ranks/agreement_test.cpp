// Promise P4 and the start of a job: ranks that disagree stop the job in that round, naming rank
// and round; a rank that cannot start stops all with one sentence.
#include "runtime/ranks/target/agreement.h"

#include <gtest/gtest.h>

#include <atomic>

#include "runtime/base/virtual_clock.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/startup/handshake.h"
#include "runtime/ranks/startup/ready_barrier.h"
#include "tests/ranks/engine_harness.h"
#include "tests/ranks/played_rounds.h"

namespace outrider::test {
namespace {

RoundPlan first_plan() {
  RoundPlan plan;
  plan.round = 41;
  plan.starts.push_back({7, greedy(10), {30, 40, 50}});
  SequencePlan sequence;
  sequence.sequence_id = 7;
  sequence.num_committed_rows = 3;
  sequence.new_blocks = {0};
  plan.sequences.push_back(sequence);
  return plan;
}

const RankLayout kTwoTargets{2, false};

TEST(Agreement, RanksThatAgreeGoOn) {
  EXPECT_EQ(run_targets(2,
                        [](World& world, TargetRank& target) {
                          world.post(1, encode(first_plan()));
                          const RoundDecision decision = target.execute(first_plan());
                          EXPECT_GE(decision.sequences.at(0).next_token, 0);
                          check_agreement(world, kTwoTargets, 41, digest(41, decision));
                          world.post(1, encode(shutdown_plan(42)));
                        }),
            "");
}

TEST(Agreement, AnotherDecisionStopsTheJobNamingRankAndRound) {
  const std::string sentence = run_targets(2, [](World& world, TargetRank& target) {
    world.post(1, encode(first_plan()));
    RoundDecision decision = target.execute(first_plan());
    decision.sequences.at(0).next_token ^= 1;  // one flipped bit on one rank
    check_agreement(world, kTwoTargets, 41, digest(41, decision));
  });
  EXPECT_NE(sentence.find("target[1/2]"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("round 41"), std::string::npos) << sentence;
}

TEST(Agreement, ARankInAnotherRoundStopsTheJob) {
  const std::string sentence = run_targets(2, [](World& world, TargetRank& target) {
    world.post(1, encode(first_plan()));
    const RoundDecision decision = target.execute(first_plan());
    check_agreement(world, kTwoTargets, 40, digest(40, decision));
  });
  EXPECT_EQ(sentence, "rank 1 (target[1/2]) is at round 41 while the coordinator is at round 40");
}

// Rank 0 sends its plan and checks digests; the others pass both on, as the target loop does. Rank
// `other` decides otherwise.
std::string run_tree(int num_targets, int other) {
  const RankLayout layout{num_targets, false};
  const Bytes plan(3, std::byte{7});
  std::atomic<int> num_received = 0;
  std::string sentence;
  try {
    run_in_process(num_targets, [&](World& world) {
      const int rank = world.rank();
      if (rank > 0) {
        num_received += receive(world, tree_parent(rank), num_targets) == plan;
      }
      post_down(world, layout, plan);
      const uint64_t digest = rank == other ? 1 : 2;
      if (rank > 0) return report_digest(world, layout, 20, digest);
      check_agreement(world, layout, 20, digest);
    });
  } catch (const Error& error) {
    sentence = error.what();
  }
  EXPECT_EQ(num_received, num_targets - 1);
  return sentence;
}

TEST(Agreement, ManyRanksTellEachOtherAlongATree) {
  for (const int num_targets : {1, 2, 8, 9, 10, 26}) {
    EXPECT_EQ(run_tree(num_targets, -1), "");
    for (int rank = 1; rank < num_targets; ++rank) {
      const auto children = tree_children(tree_parent(rank), num_targets);
      EXPECT_EQ(std::ranges::count(children, rank), 1) << rank << " of " << num_targets;
    }
  }
  EXPECT_EQ(run_tree(26, 25), "round 20 was decided differently by rank 25 (target[25/26])");
}

TEST(Agreement, TheMinorityIsNamed) {
  const RankLayout four{4, true};
  const auto sentence = [&](std::vector<uint64_t> digests) {
    return disagreement(four, 20, digests);
  };
  EXPECT_EQ(sentence({5, 5, 5, 5}), "");
  EXPECT_EQ(sentence({5, 5, 6, 5}), "round 20 was decided differently by rank 2 (target[2/4])");
  EXPECT_EQ(sentence({6, 5, 5, 5}),
            "round 20 was decided differently by rank 0 (coordinator+target[0/4])");
  EXPECT_EQ(
      sentence({6, 5, 5, 7}),
      "round 20 was decided differently by the target ranks: rank 0 (coordinator+target[0/4], "
      "digest 0000000000000006), rank 1 (target[1/4], digest 0000000000000005), rank 2 "
      "(target[2/4], digest 0000000000000005), rank 3 (target[3/4], digest "
      "0000000000000007)");
  EXPECT_EQ(disagreement(kTwoTargets, 1, std::vector<uint64_t>{1, 1}), "");
  EXPECT_NE(disagreement(kTwoTargets, 1, std::vector<uint64_t>{1, 2}), "");
}

TEST(Agreement, TheDigestCoversEveryDecidedNumber) {
  RoundDecision decision;
  decision.sequences.resize(2);
  decision.sequences[0].sequence_id = 3;
  const uint64_t base = digest(5, decision);
  EXPECT_NE(digest(6, decision), base);
  for (int change = 0; change < 4; ++change) {
    RoundDecision other = decision;
    if (change == 0) other.sequences[1].sequence_id = 4;
    if (change == 1) other.sequences[1].num_accepted = 1;
    if (change == 2) other.sequences[1].next_token = 0;
    if (change == 3) other.sequences[1].failed = true;
    EXPECT_NE(digest(5, other), base) << change;
  }
  std::swap(decision.sequences[0], decision.sequences[1]);
  EXPECT_NE(digest(5, decision), base);
}

TEST(ReadyBarrier, OneProblemStopsAllWithTheSameSentence) {
  const RankLayout layout{3, true};
  std::atomic<int> num_stopped{0};
  const auto call = [&](World& world) {
    try {
      ready_barrier(world, layout, {world.rank() == 2 ? "shard 2 is missing" : "", {}}, 30);
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "rank 2 (target[2/3] on this process): shard 2 is missing");
      ++num_stopped;
    }
  };
  run_in_process(4, call);
  EXPECT_EQ(num_stopped, 4);
}

TEST(ReadyBarrier, AllReadyGoOnAndRankZeroKnowsWhoRunsWhere) {
  run_in_process(3, [](World& world) {
    const std::string device = world.rank() == 1 ? "Some GPU" : "cpu";
    const Readiness readiness{.num_threads = world.rank() + 1, .device = device};
    const Topology topology = ready_barrier(world, RankLayout{2, true}, readiness, 30);
    if (world.rank() > 0) return;
    ASSERT_EQ(topology.ranks.size(), 3);
    EXPECT_EQ(topology.ranks[1].role, "target[1/2]");
    EXPECT_EQ(topology.ranks[1].num_threads, 2);
    EXPECT_EQ(topology.ranks[1].device, "Some GPU");
    EXPECT_EQ(topology.ranks[2].device, "cpu");
  });
}

TEST(Handshake, RanksThatWereToldOtherThingsStopAll) {
  std::atomic<int> num_stopped{0};
  run_in_process(3, [&](World& world) {
    std::vector<Fact> facts = {{"block_size", "16"}};
    if (world.rank() < 2)  // of the targets alone
      facts.push_back({"numerics", world.rank() == 1 ? "fast" : "strict"});
    try {
      startup_handshake(world, RankLayout{2, true}, "", facts, 30);
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "rank 1 (target[1/2] on this process): it has numerics fast where rank 0 has "
                   "numerics strict; all ranks need the same");
      ++num_stopped;
    }
  });
  EXPECT_EQ(num_stopped, 3);
}

TEST(Handshake, ProblemsAndSilenceStopAllAndEqualRanksGoOn) {
  const RankLayout layout{2, true};
  run_in_process(3, [&](World& world) {
    startup_handshake(world, layout, "", {{"command", "serve"}}, 30);
  });
  std::atomic<int> num_stopped{0};
  run_in_process(3, [&](World& world) {
    try {
      startup_handshake(world, layout, world.rank() == 2 ? "no such folder" : "", {}, 30);
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "rank 2 (draft on this process): no such folder");
      ++num_stopped;
    }
  });
  EXPECT_EQ(num_stopped, 3);
  EXPECT_THROW(run_in_process(3,
                              [&](World& world) {
                                if (world.rank() != 1)
                                  startup_handshake(world, layout, "", {}, 0.2);
                              }),
               Error);
}

// In virtual time, which passes when all wait: rank 2 has reported by then on any machine.
TEST(ReadyBarrier, ASilentRankIsNamed) {
  const VirtualClock clock;
  try {
    run_in_process(3, [](World& world) {
      if (world.rank() != 1) ready_barrier(world, RankLayout{2, true}, {}, 30);
    });
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no report from rank 1 (target[1/2]) in time");
  }
}

// What every rank stops with when ranks have these problems; "" when all go on.
std::string stopped_with(const RankLayout& layout, const std::vector<std::string>& problems) {
  std::vector<std::string> heard(problems.size());
  run_in_process(layout.num_ranks(), [&](World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    try {
      checked_barrier(world, layout, problems[rank], 30);
    } catch (const Error& error) {
      heard[rank] = error.what();
    }
  });
  for (const std::string& sentence : heard) EXPECT_EQ(sentence, heard[0]);
  return heard[0];
}

TEST(ReadyBarrier, AProblemOfSomeIsToldWithItsRankAndOneOfAllAsItIs) {
  const RankLayout layout{3, true};
  const std::string all = "the exchange cannot be set up: rank 1: no memory";
  EXPECT_EQ(stopped_with(layout, {"", "", "", ""}), "");
  EXPECT_EQ(stopped_with(layout, {"", "", "no memory", ""}),
            "rank 2 (target[2/3] on this process): no memory");
  EXPECT_EQ(stopped_with(layout, {"no memory", "", "", ""}),
            "rank 0 (coordinator+target[0/3] on this process): no memory");
  EXPECT_EQ(stopped_with(layout, {"rank 2 is late", "rank 2 is late", "no memory", ""}),
            "rank 0 (coordinator+target[0/3] on this process): rank 2 is late");
  EXPECT_EQ(stopped_with(layout, {all, all, all, ""}), all);
  EXPECT_EQ(stopped_with({1, false}, {"no memory"}), "no memory");
}

TEST(Layout, SizesThatDoNotFitAreRefused) {
  RunConfig config;
  EXPECT_EQ(make_layout(config, 4).num_targets, 4);
  EXPECT_EQ(make_layout(config, 0).num_ranks(), 1);
  config.speculative.model = "embedded";
  EXPECT_EQ(make_layout(config, 4).num_targets, 3);
  EXPECT_EQ(make_layout(config, 4).draft_rank(), 3);
  EXPECT_EQ(make_layout(config, 4).role(3), Role::kDraft);
  EXPECT_THROW(make_layout(config, 1), Error);
  config.tensor_parallel_size = 2;
  EXPECT_THROW(make_layout(config, 4), Error);
  EXPECT_EQ(make_layout(config, 3).num_targets, 2);
  config.speculative.method = "ngram";
  EXPECT_EQ(make_layout(config, 2).has_draft, false);
}

}  // namespace
}  // namespace outrider::test
