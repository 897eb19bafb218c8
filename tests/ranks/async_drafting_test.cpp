// What `auto` means by who runs where.
#include "runtime/ranks/job/async_drafting.h"

#include <gtest/gtest.h>

#include "runtime/comm/world/world.h"

namespace outrider {
namespace {

struct Place {
  const char* host;
  int num_threads;
};

AsyncDrafting resolved(const RunConfig& config,
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
  return resolve_async_drafting(config, layout, topology, num_cpus);
}

TEST(AsyncDrafting, AutoLooksForHardwareOfTheDraftsOwn) {
  RunConfig config;
  EXPECT_EQ(resolved(config, {{"a", 2}, {"a", 2}}, 2), AsyncDrafting::kOff);
  EXPECT_EQ(resolved(config, {{"a", 6}, {"a", 2}}, 8), AsyncDrafting::kCache);
  EXPECT_EQ(resolved(config, {{"a", 8}, {"b", 8}, {"c", 8}}, 8), AsyncDrafting::kCache);
  EXPECT_EQ(resolved(config, {{"a", 8}, {"b", 8}, {"b", 8}}, 8), AsyncDrafting::kOff);
  config.model = "sim:step_ms=1";
  EXPECT_EQ(resolved(config, {{"a", 2}, {"a", 2}}, 2), AsyncDrafting::kCache);
}

TEST(AsyncDrafting, WhatIsAskedForHolds) {
  RunConfig config;
  for (const AsyncDrafting mode :
       {AsyncDrafting::kOff, AsyncDrafting::kChain, AsyncDrafting::kCache}) {
    config.speculative.async_drafting = async_drafting_name(mode);
    EXPECT_EQ(resolved(config, {{"a", 2}, {"a", 2}}, 2), mode);
  }
}

// The option allows a translation; only one that is made is in the way.
TEST(AsyncDrafting, OffForATranslatedDraftOnly) {
  RunConfig config;
  config.speculative.async_drafting = "cache";
  config.speculative.use_heterogeneous_vocab = true;
  EXPECT_EQ(resolved(config, {{"a", 2}, {"b", 2}}, 2), AsyncDrafting::kCache);
  config.speculative.use_heterogeneous_vocab = false;
  EXPECT_EQ(resolved(config, {{"a", 2}, {"b", 2}}, 2, true), AsyncDrafting::kOff);
}

TEST(AsyncDrafting, OffWhereTheDraftSharesAGpu) {
  RunConfig config;
  const RankLayout layout = {.num_targets = 1, .has_draft = true};
  Topology topology = {.ranks = {{.rank = 0, .role = "", .host = "a", .num_threads = 1},
                                 {.rank = 1, .role = "", .host = "a", .num_threads = 1}}};
  EXPECT_EQ(resolve_async_drafting(config, layout, topology, 16), AsyncDrafting::kCache);
  topology.draft_shares_gpu = true;
  EXPECT_EQ(resolve_async_drafting(config, layout, topology, 16), AsyncDrafting::kOff);
  config.speculative.async_drafting = "cache";
  EXPECT_EQ(resolve_async_drafting(config, layout, topology, 16), AsyncDrafting::kCache);
}

TEST(AsyncDrafting, TheReadyBarrierTellsOfTheDraft) {
  for (const bool is_so : {false, true}) {
    run_in_process(2, [&](World& world) {
      const bool says = is_so && world.rank() == 1;
      const Readiness readiness{.translates = says, .shares_gpu = says};
      const Topology topology =
          ready_barrier(world, {.num_targets = 1, .has_draft = true}, readiness);
      EXPECT_EQ(topology.draft_translates, is_so && world.rank() == 0);
      EXPECT_EQ(topology.draft_shares_gpu, is_so && world.rank() == 0);
    });
  }
}

}  // namespace
}  // namespace outrider
