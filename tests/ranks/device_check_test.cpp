// What ranks that compare their GPUs refuse together, and what rank 0 warns of.
#include "runtime/ranks/startup/device_check.h"

#include <gtest/gtest.h>

#include "runtime/base/log.h"

namespace outrider::test {
namespace {

constexpr RankLayout kTwoAndADraft = {.num_targets = 2, .has_draft = true};

DeviceDescriptor descriptor_on(const std::string& uuid, int32_t compute_capability) {
  return {.uuid = uuid,
          .name = "some GPU",
          .compute_capability = compute_capability,
          .total_bytes = size_t{80} << 30,
          .num_visible = 1};
}

// The draft's, of another generation and half the size.
DeviceDescriptor smaller_draft() {
  DeviceDescriptor claim = descriptor_on("d", 80);
  claim.total_bytes = size_t{40} << 30;
  return claim;
}

// What every rank hears when ranks have these GPUs; "" for none.
std::vector<std::string> heard(const RankLayout& layout,
                               const std::vector<DeviceDescriptor>& claims) {
  std::vector<std::string> sentences(claims.size());
  run_in_process(layout.num_ranks(), [&](World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    sentences[rank] = refusal_in(check_devices(world, layout, encode_descriptor(claims[rank])));
  });
  for (const std::string& sentence : sentences) EXPECT_EQ(sentence, sentences[0]);
  return sentences;
}

TEST(DeviceCheck, OneSentenceForAll) {
  const RankLayout& layout = kTwoAndADraft;
  EXPECT_EQ(
      heard(layout, {descriptor_on("a", 90), descriptor_on("b", 90), descriptor_on("c", 80)})[0],
      "");
  EXPECT_EQ(
      heard(layout, {descriptor_on("a", 90), descriptor_on("b", 80), descriptor_on("c", 90)})[0],
      "rank 1 (target[1/2] on this process): its GPU is a some GPU (compute capability 8.0, "
      "85.9 GB) where rank 0's is a some GPU (compute capability 9.0, 85.9 GB): the target "
      "needs GPUs of one generation");
  DeviceDescriptor without;
  without.problem = "device 'cuda': there is no GPU on this machine";
  EXPECT_EQ(heard(layout, {descriptor_on("a", 90), descriptor_on("b", 90), without})[0],
            "rank 2 (draft on this process): device 'cuda': there is no GPU on this machine");
}

// What rank 0 warns of; "" for nothing, "; " between several.
std::string warnings(const RankLayout& layout, const std::vector<DeviceDescriptor>& claims) {
  set_log_level(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(heard(layout, claims)[0], "");
  const std::string log = ::testing::internal::GetCapturedStderr();
  std::string found;
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = log.find('\n', begin);
    const std::string line = log.substr(begin, end - begin);
    begin = end + 1;
    const size_t letter = line.find(" W outrider ");
    EXPECT_NE(letter, std::string::npos) << line;
    found += (found.empty() ? "" : "; ") + line.substr(letter + 12);
  }
  return found;
}

// GPU `ordinal` of those that a rank sees.
DeviceDescriptor descriptor_of_several(const std::string& uuid,
                                       int32_t ordinal,
                                       int32_t num_visible) {
  DeviceDescriptor claim = descriptor_on(uuid, 90);
  claim.ordinal = ordinal;
  claim.num_visible = num_visible;
  return claim;
}

const DeviceDescriptor kOnCpu;

TEST(GpuWarnings, NoneWhereEachHasItsGpuOrThereIsNoOther) {
  EXPECT_EQ(warnings(kTwoAndADraft,
                     {descriptor_of_several("a", 0, 3),
                      descriptor_of_several("b", 1, 3),
                      descriptor_of_several("c", 2, 3)}),
            "");
  // Each sees only its own, as under Slurm's --gpus-per-task.
  EXPECT_EQ(warnings(kTwoAndADraft,
                     {descriptor_on("a", 90), descriptor_on("b", 90), descriptor_on("c", 90)}),
            "");
  // A draft beside the target on a machine's only GPU.
  EXPECT_EQ(warnings({.num_targets = 1, .has_draft = true},
                     {descriptor_on("a", 90), descriptor_on("a", 90)}),
            "");
  EXPECT_EQ(warnings(kTwoAndADraft,
                     {descriptor_on("a", 90), descriptor_on("b", 90), descriptor_on("b", 90)}),
            "");
  EXPECT_EQ(warnings(kTwoAndADraft, {descriptor_on("a", 90), descriptor_on("b", 90), kOnCpu}), "");
  EXPECT_EQ(warnings(kTwoAndADraft, {kOnCpu, kOnCpu, kOnCpu}), "");
}

TEST(GpuWarnings, NoneForWhatWasAskedFor) {
  DeviceDescriptor given = descriptor_of_several("a", 0, 4);
  given.is_given = true;
  EXPECT_EQ(warnings(kTwoAndADraft, {given, given, given}), "");
}

TEST(GpuWarnings, SharedGpusAreNamedWithTheirRanks) {
  // Targets share a machine's only GPU; so does the draft.
  const DeviceDescriptor only = descriptor_on("a", 90);
  EXPECT_EQ(warnings({.num_targets = 2}, {only, only}),
            "ranks 0 (coordinator+target[0/2]), 1 (target[1/2]) share GPU 0 of this process, where "
            "they see 1 GPU(s): they take turns and share its memory");
  EXPECT_EQ(warnings(kTwoAndADraft, {only, only, only}),
            "ranks 0 (coordinator+target[0/2]), 1 (target[1/2]), 2 (draft) share GPU 0 of this "
            "process, where they see 1 GPU(s): they take turns and share its memory");
  // Others were to be had.
  const DeviceDescriptor first = descriptor_of_several("a", 0, 2),
                         second = descriptor_of_several("b", 1, 2);
  EXPECT_EQ(warnings(kTwoAndADraft, {first, second, second}),
            "ranks 1 (target[1/2]), 2 (draft) share GPU 1 of this process, where they see 2 "
            "GPU(s): they take turns and share its memory");
  EXPECT_EQ(warnings({.num_targets = 1, .has_draft = true}, {first, first}),
            "ranks 0 (coordinator+target[0/1]), 1 (draft) share GPU 0 of this process, where they "
            "see 2 GPU(s): they take turns and share its memory");
  // Two GPUs that are shared are two sentences.
  EXPECT_EQ(warnings({.num_targets = 4}, {first, second, first, second}),
            "ranks 0 (coordinator+target[0/4]), 2 (target[2/4]) share GPU 0 of this process, where "
            "they see 2 GPU(s): they take turns and share its memory; "
            "ranks 1 (target[1/4]), 3 (target[3/4]) share GPU 1 of this process, where they see 2 "
            "GPU(s): they take turns and share its memory");
}

TEST(GpuWarnings, OtherKindsOfOneGenerationAreNamedOnce) {
  DeviceDescriptor smaller = descriptor_on("b", 90), third = descriptor_on("c", 90);
  smaller.total_bytes = size_t{40} << 30;
  third.name = "another GPU";
  EXPECT_EQ(warnings({.num_targets = 3}, {descriptor_on("a", 90), smaller, third}),
            "rank 1 has a some GPU (compute capability 9.0, 42.9 GB) where rank 0 has a some GPU "
            "(compute capability 9.0, 85.9 GB): the smallest decides how much KV memory all have, "
            "the slowest how fast a round is");
  EXPECT_EQ(warnings({.num_targets = 2}, {descriptor_on("a", 80), descriptor_on("b", 86)}),
            "rank 1 has a some GPU (compute capability 8.6, 85.9 GB) where rank 0 has a some GPU "
            "(compute capability 8.0, 85.9 GB): the smallest decides how much KV memory all have, "
            "the slowest how fast a round is");
  // The draft's may be any.
  EXPECT_EQ(
      warnings(kTwoAndADraft, {descriptor_on("a", 90), descriptor_on("b", 90), smaller_draft()}),
      "");
}

}  // namespace
}  // namespace outrider::test
