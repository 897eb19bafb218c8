// The planner of speculation: single choices by hand, and a renewal process in virtual time against
// the formulas that it should reach, and against plain decoding where speculation cannot pay.
#include "scheduler/pacing/speculation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/scheduler/speculation_sim.h"

namespace outrider {
namespace {

using Mode = SimulatedJob::Mode;

SurvivalCurve geometric(double alpha) {
  SurvivalCurve curve{};
  double survival = 1;
  for (float& one : curve) one = static_cast<float>(survival *= alpha);
  return curve;
}

StepTimes costs_of(const std::function<double(int32_t)>& step) {
  StepTimes costs;
  for (int32_t rows = 1; rows <= 128; ++rows) {
    for (int i = 0; i < 2; ++i) costs.add({.num_rows = rows}, step(rows));
  }
  return costs;
}

RoundState outlook_of(const std::vector<int32_t>& at_hand) {
  RoundState state;
  for (size_t i = 0; i < at_hand.size(); ++i) {
    state.sequences.push_back(
        {.sequence_id = i + 1, .limit = 16, .num_at_hand = at_hand[i], .more_coming = true});
  }
  return state;
}

GoodputInputs inputs_of(const StepTimes& costs, std::vector<double> alphas, double price) {
  GoodputInputs inputs;
  for (double alpha : alphas) inputs.survival.push_back(geometric(alpha));
  inputs.steps = &costs;
  inputs.price = price;
  inputs.first_token_s = inputs.token_s = 0.1;
  return inputs;
}

double expected(double alpha, int32_t draft_len) {
  return (1 - std::pow(alpha, draft_len + 1)) / (1 - alpha);
}

TEST(ChooseRound, WaitsWhileTheNextTokenIsWorthItsTime) {
  const StepTimes flat = costs_of([](int32_t) { return 1.0; });
  // 0.8^6 = 0.262 > 2.47 * 0.1 > 0.8^7.
  const RoundChoice choice = choose_round(outlook_of({0}), inputs_of(flat, {0.8}, 2.47));
  EXPECT_TRUE(choice.wait);
  EXPECT_EQ(choice.sequences[0].draft_len, 6);
  EXPECT_NEAR(choice.wait_s, 0.6, 1e-9);
  EXPECT_FALSE(choose_round(outlook_of({6}), inputs_of(flat, {0.8}, 2.47)).wait);
  EXPECT_FALSE(choose_round(outlook_of({0}), inputs_of(flat, {0.2}, 2.47)).wait);
  // Two that wait for it pay for it together.
  EXPECT_TRUE(choose_round(outlook_of({0, 0}), inputs_of(flat, {0.2, 0.2}, 2.47)).wait);
  RoundState late = outlook_of({0});
  late.may_wait = false;
  EXPECT_FALSE(choose_round(late, inputs_of(flat, {0.8}, 2.47)).wait);
  late = outlook_of({0});
  late.sequences[0].more_coming = false;
  EXPECT_FALSE(choose_round(late, inputs_of(flat, {0.8}, 2.47)).wait);
}

TEST(ChooseRound, TakesAllThatIsAtHandWhenRowsAreFree) {
  const StepTimes flat = costs_of([](int32_t) { return 1.0; });
  const RoundChoice choice = choose_round(outlook_of({10}), inputs_of(flat, {0.8}, 4.5));
  EXPECT_FALSE(choice.wait);
  EXPECT_EQ(choice.sequences[0].draft_len, 10);
  EXPECT_EQ(choice.sequences[0].wanted_len, 16);
}

TEST(ChooseRound, RowsGoToTheLikeliestTokensUpToWhatTheyCost) {
  // Each row more costs 0.1; at a price of 4 that is a chance of 0.4.
  const StepTimes linear = costs_of([](int32_t rows) { return 0.8 + 0.1 * rows; });
  RoundChoice choice = choose_round(outlook_of({8, 8}), inputs_of(linear, {0.9, 0.5}, 4));
  EXPECT_EQ(choice.sequences[0].draft_len, 8);  // 0.9^8 = 0.43
  EXPECT_EQ(choice.sequences[1].draft_len, 1);  // 0.25 < 0.4
  RoundState tight = outlook_of({8, 8});
  tight.max_rows = 5;
  choice = choose_round(tight, inputs_of(linear, {0.9, 0.5}, 4));
  EXPECT_EQ(choice.sequences[0].draft_len, 3);
  EXPECT_EQ(choice.sequences[1].draft_len, 0);
}

TEST(ChooseRound, FixedLengthsAreServedWhateverTheyBring) {
  const StepTimes linear = costs_of([](int32_t rows) { return 1.0 * rows; });
  RoundState state = outlook_of({2});
  state.sequences[0].fixed = true;
  state.sequences[0].limit = 5;
  RoundChoice choice = choose_round(state, inputs_of(linear, {0.1}, 1));
  EXPECT_TRUE(choice.wait);
  EXPECT_EQ(choice.sequences[0].draft_len, 5);
  state.may_wait = false;
  choice = choose_round(state, inputs_of(linear, {0.1}, 1));
  EXPECT_FALSE(choice.wait);
  EXPECT_EQ(choice.sequences[0].draft_len, 2);
}

TEST(StepTimes, LiesBetweenNeighboursWhereNothingWasSeen) {
  StepTimes costs;
  EXPECT_EQ(costs.at({.num_rows = 16}), 0);
  for (int i = 0; i < 3; ++i) costs.add({.num_rows = 16}, 0.04);
  EXPECT_DOUBLE_EQ(costs.at({.num_rows = 16}), 0.04);
  EXPECT_DOUBLE_EQ(costs.at({.num_rows = 64}), 0.04);  // to be found out
  EXPECT_LT(costs.at({.num_rows = 4}), 0.04);
  for (int i = 0; i < 3; ++i) costs.add({.num_rows = 80}, 0.16);
  EXPECT_GT(costs.at({.num_rows = 48}), 0.08);
  EXPECT_LT(costs.at({.num_rows = 48}), 0.10);
  EXPECT_DOUBLE_EQ(costs.likely({.num_rows = 48}), 0.10);
}

TEST(StepTimes, NeverFallsWithTheRowsAndForgetsOneDisturbedStep) {
  StepTimes costs;
  for (int i = 0; i < 8; ++i) {
    costs.add({.num_rows = 4}, 0.05);
    costs.add({.num_rows = 32}, 0.04);
  }
  EXPECT_GE(costs.at({.num_rows = 32}), costs.at({.num_rows = 4}));
  const std::vector<double> range = costs.range({.num_rows = 1}, 64, 0);
  ASSERT_EQ(range.size(), 64u);
  for (size_t i = 1; i < range.size(); ++i) EXPECT_GE(range[i], range[i - 1]) << i;
  costs.add({.num_rows = 32}, 1.0);
  for (int i = 0; i < 8; ++i) costs.add({.num_rows = 32}, 0.05);
  EXPECT_LT(costs.at({.num_rows = 32}), 0.06);
}

TEST(StepTimes, LearnsWhatPositionsCost) {
  StepTimes costs;
  std::mt19937 random(7);
  const auto step = [](const StepLoad& load) {
    return 0.01 + 1e-4 * load.num_rows + 2e-7 * static_cast<double>(load.kv_positions) +
           1e-8 * static_cast<double>(load.row_positions);
  };
  for (int i = 0; i < 2000; ++i) {
    const int32_t rows = 1 + static_cast<int32_t>(random() % 8);
    const int64_t context = static_cast<int64_t>(random() % 20000);
    const StepLoad load{rows, context, rows * context};
    costs.add(load, step(load));
  }
  EXPECT_NEAR(costs.kv_position_s(), 2e-7, 2e-8);
  EXPECT_NEAR(costs.row_position_s(), 1e-8, 5e-9);
  const StepLoad far{4, 40000, 160000};  // further than ever seen
  EXPECT_NEAR(costs.at(far), step(far), 0.1 * step(far));
}

// Of many requests at once that all grow by a token a step, and then of new ones: disturbed steps
// say nothing about positions, unless these cost what stands out of it.
TEST(StepTimes, DisturbedStepsAreNotTakenForLongTexts) {
  for (const double position_s : {0.0, 2e-7}) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      StepTimes costs;
      std::mt19937 random(seed);
      std::exponential_distribution<double> late(1 / 0.8e-3);
      std::normal_distribution<double> change(0, 0.1e-3);
      double drift = 0;  // of the machine
      for (int wave = 0; wave < 4; ++wave) {
        for (int32_t context = 3; context < 150; ++context) {
          const int32_t rows = 256 - std::max(0, context - 140);  // towards the end some are over
          const StepLoad load{rows, rows * context, rows * context};
          const double quiet = 0.010 + 5e-5 * rows + position_s * rows * context;
          if (wave > 1) {
            ASSERT_NEAR(costs.at(load), quiet, 0.2 * quiet)
                << position_s << " s, seed " << seed << ", wave " << wave << ", " << context;
          }
          drift = 0.98 * drift + change(random);
          costs.add(load, quiet + std::max(-2e-3, drift) + late(random));
        }
      }
    }
  }
}

SimulatedRun steady(SimulatedJob job, int64_t num_rounds = 4000) {
  SpeculationSim sim(job);
  sim.run(500);
  return sim.run(num_rounds);
}

// docs/benchmarks.md holds the same columns for real ranks.
TEST(Speculation, ReachesTheFormulas) {
  struct Row {
    double alpha, cost, synchronous, chain, cache8, cache9;
  };
  for (const Row& row : {Row{.6, .05, 1.92, 1.96, 2.36, 2.43},
                         Row{.7, .10, 1.98, 2.16, 2.94, 3.10},
                         Row{.8, .05, 3.09, 3.31, 4.31, 4.51},
                         Row{.8, .10, 2.47, 2.86, 4.01, 4.28},
                         Row{.8, .20, 1.87, 2.42, 3.18, 3.43},
                         Row{.9, .10, 3.43, 4.43, 5.84, 6.33}}) {
    SimulatedJob job;
    job.alpha = [&](int64_t) { return row.alpha; };
    job.draft_step = row.cost;
    const auto speed = [&](Mode mode, double hit_rate) {
      job.mode = mode;
      job.hit_rate = hit_rate;
      return steady(job).speed();
    };
    SCOPED_TRACE(::testing::Message() << "alpha " << row.alpha << " c " << row.cost);
    EXPECT_GE(speed(Mode::kOff, 0), 0.96 * row.synchronous);
    EXPECT_GE(speed(Mode::kChain, 0), 0.93 * row.chain);
    EXPECT_GE(speed(Mode::kCache, 0.8), 0.96 * row.cache8);
    EXPECT_GE(speed(Mode::kCache, 0.9), 0.96 * row.cache9);
  }
}

TEST(Speculation, SynchronousLengthIsTheBest) {
  SimulatedJob job;
  const SimulatedRun run = steady(job);
  EXPECT_NEAR(run.mean_draft_len(), 6, 1);
  EXPECT_NEAR(run.speed(), expected(0.8, 6) / 1.6, 0.1);
}

TEST(Speculation, FindsOutWithoutProbes) {
  SimulatedJob job;
  job.mode = Mode::kCache;
  job.probes = false;
  EXPECT_GE(steady(job).speed(), 0.96 * 4.01);
  job.mode = Mode::kOff;
  EXPECT_GE(steady(job).speed(), 0.96 * 2.47);
}

TEST(Speculation, PreparedBlocksAreTakenWholeAndNeverWaitedFor) {
  SimulatedJob job;
  job.mode = Mode::kCache;
  job.hit_rate = 1;
  const SimulatedRun run = steady(job);
  EXPECT_GE(run.mean_draft_len(), 9);
  EXPECT_LE(run.num_waits, 0.01 * run.num_rounds);
  EXPECT_GE(run.speed(), 0.96 * expected(0.8, 10));
}

TEST(Speculation, NeverWorseThanPlain) {
  struct Case {
    const char* name;
    SimulatedJob job;
  };
  const auto never = [](int64_t) { return 0.0; };
  const auto linear = [](int32_t rows) { return 1.0 * rows; };
  for (Mode mode : {Mode::kOff, Mode::kChain, Mode::kCache}) {
    for (const Case& one :
         {Case{"acceptance 0", {.alpha = never}},
          Case{"acceptance 0, c 0.5", {.draft_step = 0.5, .alpha = never}},
          Case{"acceptance 0, shared cores", {.slower_beside_draft = 1.3, .alpha = never}},
          Case{"c 1", {.draft_step = 1}},
          Case{"10 times too slow", {.draft_step = 10}},
          Case{"10 times too slow, shared cores", {.draft_step = 10, .slower_beside_draft = 1.5}},
          Case{"shared cores, no probes",
               {.slower_beside_draft = 1.3, .alpha = never, .probes = false}},
          Case{"c 1, no probes", {.draft_step = 1, .probes = false}},
          Case{"drafting costs more than it brings", {.slower_beside_draft = 6}},
          Case{"saturated", {.num_sequences = 64, .draft_step = 6.4, .step = linear}}}) {
      SimulatedJob job = one.job;
      job.mode = mode;
      SpeculationSim sim(job);
      sim.run(300);
      const double plain = job.num_sequences / job.step(job.num_sequences);
      EXPECT_GE(sim.run(1000).speed(), 0.98 * plain)
          << one.name << ", mode " << static_cast<int>(mode);
    }
  }
}

TEST(Speculation, FallsSmoothlyAsTheBatchGrows) {
  double last = 100;
  for (int32_t num_sequences : {1, 4, 16, 64, 160}) {
    SimulatedJob job;
    job.num_sequences = num_sequences;
    job.mode = Mode::kCache;
    job.step = [](int32_t rows) { return std::max(1.0, rows / 128.0); };
    const double plain = num_sequences / job.step(num_sequences);
    const double gain = steady(job, 400).speed() / plain;
    EXPECT_GE(gain, 0.98) << num_sequences;
    EXPECT_LE(gain, 1.05 * last) << num_sequences;
    if (num_sequences == 64) {
      EXPECT_GE(gain, 1.5);
    }
    last = gain;
  }
}

TEST(Speculation, FollowsAcceptanceDownAndUpAgain) {
  for (Mode mode : {Mode::kOff, Mode::kChain, Mode::kCache}) {
    for (double slower : {1.0, 1.2}) {
      SimulatedJob job;
      job.mode = mode;
      job.slower_beside_draft = slower;
      bool good = true;
      job.alpha = [&](int64_t) { return good ? 0.8 : 0.0; };
      SpeculationSim sim(job);
      sim.run(300);
      const double before = sim.run(1000).speed();
      good = false;
      sim.run(400);
      EXPECT_GE(sim.run(1000).speed(), 0.97) << static_cast<int>(mode) << " " << slower;
      good = true;
      // Where the draft slows the target down it is tried again every now and then only.
      sim.run(slower > 1 ? 6000 : 200);
      EXPECT_GE(sim.run(1000).speed(), 0.93 * before) << static_cast<int>(mode) << " " << slower;
    }
  }
}

// Who shares its cores with the target takes long while the target's steps run: of those times no
// wait may be judged. The first, of a draft of whose speed nothing is known, is too short for c
// 0.3.
TEST(Speculation, ADraftThatTheTargetStarvesIsWaitedFor) {
  struct Case {
    double cost, speed;  // of the best length
  };
  for (const Case& one : {Case{.1, 2.47}, Case{.3, 1.55}}) {
    for (bool probes : {true, false}) {
      SimulatedJob job;
      job.draft_step = one.cost;
      job.slower_beside_target = 40;
      job.probes = probes;
      EXPECT_GE(steady(job).speed(), 0.96 * one.speed) << one.cost << " " << probes;
    }
  }
}

// What made its steps long is over, and nobody waits for it any more.
TEST(Speculation, ADraftThatWasSlowIsWaitedForAgain) {
  for (double slower : {4.0, 30.0}) {
    SimulatedJob job;
    job.slower_beside_target = 40;
    bool slow = true;
    job.draft_slower = [&] { return slow ? slower : 1.0; };
    SpeculationSim sim(job);
    sim.run(1000);
    EXPECT_GE(sim.run(1000).speed(), 0.98) << slower;
    slow = false;
    sim.run(2000);
    EXPECT_GE(sim.run(1000).speed(), 0.95 * 2.47) << slower;
  }
}

// Its process was stopped for a moment, or a link was slow that has been replaced.
TEST(Speculation, ADraftThatAnsweredLateIsWaitedForAgain) {
  for (Mode mode : {Mode::kOff, Mode::kChain, Mode::kCache}) {
    for (const auto& [link_s, num_rounds] : {std::pair(1000.0, 1), std::pair(30.0, 300)}) {
      SimulatedJob job{.mode = mode};
      const double usual = steady(job).speed();
      bool late = false;
      job.link = [&] { return late ? link_s : 0.0; };
      SpeculationSim sim(job);
      sim.run(500);
      late = true;
      while (num_rounds == 1 && sim.run(1).num_waits == 0) {
      }
      sim.run(num_rounds - 1);
      late = false;
      sim.run(6000);
      EXPECT_GE(sim.run(4000).speed(), 0.95 * usual) << static_cast<int>(mode) << " " << link_s;
    }
  }
}

// ---- drafts that nobody uses
// -------------------------------------------------------------------------------------------------------

// Rows cost what they bring at 256 sequences, and next to nothing at 16.
SimulatedJob busy_job(double* alpha) {
  return {.mode = Mode::kCache,
          .num_sequences = 256,
          .step = [](int32_t rows) { return 1 + 0.005 * rows; },
          .alpha = [alpha](int64_t) { return *alpha; }};
}

TEST(Speculation, ADraftWhoseTokensGetNoRowsRests) {
  double alpha = 0.3;
  const SimulatedJob job = busy_job(&alpha);
  SpeculationSim sim(job);
  EXPECT_EQ(sim.run(8).num_idle_rounds, 0);
  EXPECT_GE(sim.run(100).num_idle_rounds, 60);
  const SimulatedRun run = sim.run(1000);
  EXPECT_GE(run.num_idle_rounds, 900);
  EXPECT_LE(run.num_idle_rounds, 999);  // it is tried
  EXPECT_GE(run.speed(), 0.995 * 256 / job.step(256));
}

TEST(Speculation, ARestEndsWhenTheLoadFalls) {
  double alpha = 0.3;
  SpeculationSim rested(busy_job(&alpha));
  rested.run(1500);
  rested.resize(16);
  const SimulatedRun first = rested.run(60);
  const SimulatedRun after = rested.run(400);
  SimulatedJob small = busy_job(&alpha);
  small.num_sequences = 16;
  SpeculationSim never(small);
  never.run(60);
  const SimulatedRun as_ever = never.run(400);
  EXPECT_GE(as_ever.speed(), 1.1 * 16 / small.step(16));
  EXPECT_GE(after.speed(), 0.97 * as_ever.speed());
  EXPECT_GE(first.speed(), 0.9 * as_ever.speed());
  rested.resize(256);
  rested.run(600);  // and it goes on where it was
  EXPECT_GE(rested.run(600).num_idle_rounds, 500);
}

TEST(Speculation, ARestingDraftThatWouldPayIsFoundOut) {
  double alpha = 0.1;
  SpeculationSim sim(busy_job(&alpha));
  sim.run(1500);
  alpha = 0.95;
  sim.run(600);
  SpeculationSim never(busy_job(&alpha));
  never.run(600);
  EXPECT_GE(sim.run(400).speed(), 0.97 * never.run(400).speed());
}

TEST(Speculation, AStallDuringATrialDoesNotPutOffTheNextOne) {
  double alpha = 0;
  double factor = 1;
  SimulatedJob job{.mode = Mode::kCache, .slower_beside_draft = 1.3};
  job.alpha = [&](int64_t) { return alpha; };
  job.disturbance = [&](int64_t, std::mt19937&) { return factor; };
  SpeculationSim sim(job);
  sim.run(20'000);
  int64_t num_rounds = 0;
  while (sim.run(1).num_idle_rounds > 0) ASSERT_LT(++num_rounds, 20'000) << "no trial";
  factor = 20'000;
  ASSERT_EQ(sim.run(1).num_idle_rounds, 0) << "the trial is over";
  factor = 1;
  while (sim.run(1).num_idle_rounds == 0) {  // the trial itself shows nothing new
  }
  alpha = 0.9;
  sim.run(20'000);
  EXPECT_LT(sim.run(1000).num_idle_rounds, 100);
}

TEST(Speculation, DraftsThatPayNeverRest) {
  double alpha = 0.6;
  for (const int32_t num_sequences : {1, 4, 16, 64}) {
    SimulatedJob job = busy_job(&alpha);
    job.num_sequences = num_sequences;
    // But for rounds that measure what idle drafts would make of them.
    EXPECT_LE(SpeculationSim(job).run(1000).num_idle_rounds, 40) << num_sequences;
  }
}

// ---- disturbed machines
// -------------------------------------------------------------------------------------------------------

double between(double least, double most, std::mt19937& random) {
  return std::uniform_real_distribution<double>(least, most)(random);
}

// While the draft is judged for the first time, or longer.
struct Disturbance {
  const char* name;
  std::function<double(int64_t, std::mt19937&)> factor;
};
std::vector<Disturbance> disturbed_beginnings() {
  return {{"outliers",
           [](int64_t round, std::mt19937& random) {
             const bool hit = between(0, 1, random) < 0.33;
             return round < 30 && hit ? between(3, 20, random) : 1.0;
           }},
          {"everything slower than when it was probed",
           [](int64_t round, std::mt19937& random) {
             return round < 100 ? between(2, 4, random) : 1.0;
           }},
          {"slower for a few rounds", [](int64_t round, std::mt19937& random) {
             return round < 20 ? between(3, 6, random) : 1.0;
           }}};
}

TEST(Speculation, ADraftThatPaysIsNotGivenUpForDisturbedFirstRounds) {
  for (Mode mode : {Mode::kOff, Mode::kCache}) {
    for (const Disturbance& disturbance : disturbed_beginnings()) {
      for (uint32_t seed = 1; seed <= 20; ++seed) {
        SimulatedJob job;
        job.mode = mode;
        job.disturbance = disturbance.factor;
        SpeculationSim sim(job, seed);
        sim.run(100);  // disturbed, and some rounds to get over it
        const double formula = mode == Mode::kOff ? 2.47 : 4.01;
        EXPECT_GE(sim.run(150).speed(), 0.55 * formula)
            << disturbance.name << ", mode " << static_cast<int>(mode) << ", seed " << seed;
      }
    }
  }
}

TEST(Speculation, ADraftThatCostsIsFoundOutAmongOutliers) {
  const auto outliers = [](int64_t, std::mt19937& random) {
    return between(0, 1, random) < 0.05 ? between(3, 10, random) : 1.0;
  };
  for (Mode mode : {Mode::kOff, Mode::kCache}) {
    double seconds = 0;
    double plain_s = 0;
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      SimulatedJob job{.mode = mode, .slower_beside_draft = 1.3, .disturbance = outliers};
      job.alpha = [](int64_t) { return 0.0; };
      const SimulatedRun run = SpeculationSim(job, seed).run(1000);
      seconds += run.seconds;
      plain_s += run.plain_s;
    }
    EXPECT_LE(seconds, plain_s / 0.95) << static_cast<int>(mode);
  }
}

// Steps by rows are known; the draft model is away, or its block is not there.
Speculation that_knows(const std::function<double(int32_t)>& step) {
  Speculation planner({.has_worker = true, .drafts_async = true});
  for (int32_t rows = 1; rows <= 32; ++rows) {
    for (int i = 0; i < 8; ++i) planner.record_probe({.num_rows = rows}, step(rows));
  }
  return planner;
}

RoundState with_backup(int32_t match_len) {
  RoundState state = outlook_of({0});
  SequenceState& one = state.sequences[0];
  one.more_coming = false;
  one.backup_source = BlockSource::kNgram;
  one.backup_len = 8;
  one.match_len = match_len;
  return state;
}

DraftResult backup_result(int32_t match_len, int32_t num_accepted) {
  return {.sequence_id = 1,
          .num_drafted = 8,
          .num_accepted = num_accepted,
          .source = BlockSource::kNgram,
          .backup_source = BlockSource::kNgram,
          .match_len = match_len};
}

TEST(Speculation, EachBackupHasAnAcceptanceOfItsOwn) {
  Speculation planner = that_knows([](int32_t rows) { return 1 + 0.2 * rows; });
  for (int i = 0; i < 40; ++i) {
    planner.record_draft(backup_result(2, 0));
    planner.record_draft(backup_result(4, 8));
    planner.record_result(1, 4, 0);  // of the draft model
  }
  EXPECT_FALSE(planner.choose(with_backup(2)).sequences[0].uses_backup);
  const RoundChoice choice = planner.choose(with_backup(4));
  EXPECT_TRUE(choice.sequences[0].uses_backup);
  EXPECT_EQ(choice.sequences[0].draft_len, 8);
  // What it would have been worth counts when it was not judged.
  for (int i = 0; i < 300; ++i) {
    DraftResult result = backup_result(4, 0);
    result.num_drafted = 0;
    result.source = BlockSource::kNone;
    result.backup_counterfactual = false;
    planner.record_draft(result);
  }
  EXPECT_FALSE(planner.choose(with_backup(4)).sequences[0].uses_backup);
}

TEST(Speculation, ABackupMustPayForItsRows) {
  Speculation cheap = that_knows([](int32_t rows) { return 1 + 0.01 * rows; });
  Speculation dear = that_knows([](int32_t rows) { return 1.0 * rows; });
  for (Speculation* planner : {&cheap, &dear}) {
    for (int i = 0; i < 40; ++i) planner->record_draft(backup_result(4, i % 2 == 0 ? 1 : 0));
  }
  EXPECT_TRUE(cheap.choose(with_backup(4)).sequences[0].uses_backup);
  EXPECT_FALSE(dear.choose(with_backup(4)).sequences[0].uses_backup);
  EXPECT_EQ(dear.choose(with_backup(4)).sequences[0].draft_len, 0);
}

TEST(Speculation, WithoutCostsItGoesWithAFewTokens) {
  Speculation planner({.has_worker = true});
  RoundState state = outlook_of({0});
  RoundChoice choice = planner.choose(state);
  EXPECT_TRUE(choice.draft_works);
  EXPECT_LE(choice.sequences[0].draft_len, 4);
  EXPECT_TRUE(planner.choose({}).sequences.empty());
}

}  // namespace
}  // namespace outrider
