// What `auto` means by who runs where.
#include "runtime/ranks/job/ride_ahead.h"

#include <gtest/gtest.h>

#include "runtime/comm/world/world.h"

namespace outrider {
namespace {

struct Place {
  const char* host;
  int num_threads;
};

RideAhead resolved(const RunConfig& config,
                   std::vector<Place> places,
                   int num_cpus,
                   bool draft_translates = false) {
  Topology topology;
  topology.draft_translates = draft_translates;
  for (const Place& place : places)
    topology.ranks.push_back({.rank = static_cast<int>(topology.ranks.size()),
                              .role = "",
                              .host = place.host,
                              .num_threads = place.num_threads});
  const RankLayout layout = {.num_targets = static_cast<int>(places.size()) - 1, .has_draft = true};
  return resolve_ride_ahead(config, layout, topology, num_cpus);
}

TEST(RideAhead, AutoLooksForHardwareOfTheDraftsOwn) {
  RunConfig config;
  EXPECT_EQ(resolved(config, {{"a", 2}, {"a", 2}}, 2), RideAhead::kOff);
  EXPECT_EQ(resolved(config, {{"a", 6}, {"a", 2}}, 8), RideAhead::kCache);
  EXPECT_EQ(resolved(config, {{"a", 8}, {"b", 8}, {"c", 8}}, 8), RideAhead::kCache);
  EXPECT_EQ(resolved(config, {{"a", 8}, {"b", 8}, {"b", 8}}, 8), RideAhead::kOff);
  config.model = "sim:step_ms=1";
  EXPECT_EQ(resolved(config, {{"a", 2}, {"a", 2}}, 2), RideAhead::kCache);
}

TEST(RideAhead, WhatIsAskedForHolds) {
  RunConfig config;
  for (const RideAhead mode : {RideAhead::kOff, RideAhead::kChain, RideAhead::kCache}) {
    config.speculative.ride_ahead = ride_ahead_name(mode);
    EXPECT_EQ(resolved(config, {{"a", 2}, {"a", 2}}, 2), mode);
  }
}

// The option allows a translation; only one that is made is in the way.
TEST(RideAhead, OffForATranslatedDraftOnly) {
  RunConfig config;
  config.speculative.ride_ahead = "cache";
  config.speculative.use_heterogeneous_vocab = true;
  EXPECT_EQ(resolved(config, {{"a", 2}, {"b", 2}}, 2), RideAhead::kCache);
  config.speculative.use_heterogeneous_vocab = false;
  EXPECT_EQ(resolved(config, {{"a", 2}, {"b", 2}}, 2, true), RideAhead::kOff);
}

TEST(RideAhead, TheRollCallTellsOfATranslatedDraft) {
  for (const bool translates : {false, true}) {
    run_in_process(2, [&](World& world) {
      const Readiness readiness{.translates = translates && world.rank() == 1};
      const Topology topology = roll_call(world, {.num_targets = 1, .has_draft = true}, readiness);
      EXPECT_EQ(topology.draft_translates, translates && world.rank() == 0);
    });
  }
}

}  // namespace
}  // namespace outrider
