// Prefix reuse on recorded traffic: of the blocks that could be reused, nearly all are, when memory
// allows. What could be is counted here from the trace's hash ids, by other code than the bench's.
#include "tests/commands/prefix_replay.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "tests/base/error_sentence.h"
#include "tests/scheduler/fake_ranks.h"

namespace outrider {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kVocabSize = 1 << 16;

ReplaySettings settings_for(const std::vector<ReplayRequest>& requests, int32_t num_blocks) {
  ReplaySettings settings;
  PlannerConfig& planner = settings.planner;
  planner.block_size = kBlockSize;
  planner.num_blocks = num_blocks;
  planner.max_num_seqs = 256;
  planner.max_num_batched_tokens = 2048;
  planner.vocab_size = kVocabSize;
  planner.max_model_len = 1;
  for (const ReplayRequest& request : requests) {
    planner.max_model_len = std::max(
        planner.max_model_len, static_cast<int32_t>(request.prompt.size()) + request.output_len);
  }
  return settings;
}

int64_t sum_of(const std::vector<int32_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

ReplayRequest request_of(double arrival_s, int32_t first_token, int32_t size) {
  ReplayRequest request{.arrival_s = arrival_s, .prompt = {}, .output_len = 2};
  request.prompt.resize(static_cast<size_t>(size));
  std::iota(request.prompt.begin(), request.prompt.end(), first_token);
  return request;
}

TEST(PrefixReplay, CountsWhatIsReusedAndWhatCouldBe) {
  std::vector<ReplayRequest> requests = {
      request_of(0, 1, 50),       // three full blocks
      request_of(0, 1, 40),       // at the same moment: nothing is there yet
      request_of(10, 1, 48),      // its last token is computed: two blocks
      request_of(20, 1, 100),     // three blocks
      request_of(30, 5000, 100),  // another text
      request_of(40, 1, 33),
  };
  requests.back().prompt[16] = 9;  // one block
  EXPECT_EQ(reusable_tokens(requests, kBlockSize), (std::vector<int32_t>{0, 32, 32, 48, 0, 16}));
  const ReplayResult result = replay(requests, settings_for(requests, 100));
  EXPECT_EQ(result.num_cached, (std::vector<int32_t>{0, 0, 32, 48, 0, 16}));
  EXPECT_EQ(result.most_running, 2);
  EXPECT_EQ(result.num_rounds, 10);
  EXPECT_GE(result.seconds, 40);
  // In 7 blocks the text of 100 tokens leaves nothing of what was before.
  const ReplayResult tight = replay(requests, settings_for(requests, 7));
  EXPECT_EQ(tight.num_cached.back(), 0);
  ReplaySettings off = settings_for(requests, 100);
  off.planner.enable_prefix_caching = false;
  EXPECT_EQ(sum_of(replay(requests, off).num_cached), 0);
}

TEST(PrefixReplay, ARequestThatCannotRunIsNamed) {
  const std::vector<ReplayRequest> requests = {request_of(0, 1, 20), request_of(0, 1, 200)};
  EXPECT_TRUE(fails_with([&] { replay(requests, settings_for(requests, 4)); },
                         "request 2 of the trace: the request needs 13 KV blocks"));
}

// ---- the recorded trace

constexpr double kScale = 1.0 / 16;  // of lengths and times: as many requests run at once as did
constexpr int32_t kTokensPerId = 32;

std::string trace_file() {
  const char* given = std::getenv("OUTRIDER_DATA");
  const std::string folder =
      given != nullptr ? given : std::string(OUTRIDER_SOURCE_DIR) + "/../shared/data";
  const std::string file = folder + "/traces/mooncake_conversation_head2000.jsonl";
  return std::filesystem::exists(file) ? file : "";
}

std::vector<TraceRow> trace_rows() {
  const std::string file = trace_file();
  std::vector<TraceRow> rows = parse_mooncake_trace(read_text_file(file, size_t{1} << 28));
  scale_trace(kScale, kScale, &rows);
  return rows;
}

// From the ids alone: an id that an earlier prompt has in the same place stands for the same
// tokens, as many as both have.
int64_t reusable_by_ids(const std::vector<TraceRow>& rows) {
  std::map<std::vector<int64_t>, int32_t> longest;  // by ids up to here, tokens seen of the last
  int64_t num_tokens = 0;
  for (const TraceRow& row : rows) {
    std::vector<int64_t> ids;
    int32_t known = 0;
    bool unbroken = true;
    for (size_t i = 0; i < row.hash_ids.size(); ++i) {
      const int32_t left = row.input_len - static_cast<int32_t>(i) * kTokensPerId;
      if (left <= 0) break;
      ids.push_back(row.hash_ids[i]);
      int32_t& seen = longest[ids];
      const int32_t own = std::min(left, kTokensPerId);
      if (unbroken) known += std::min(seen, own);
      unbroken = unbroken && seen >= own;
      seen = std::max(seen, own);
    }
    num_tokens += std::min(known, row.input_len - 1) / kBlockSize * kBlockSize;
  }
  return num_tokens;
}

TEST(RecordedTrace, NearlyAllReusableBlocksAreReused) {
  if (trace_file().empty()) GTEST_SKIP() << "no ../shared/data and no OUTRIDER_DATA";
  const std::vector<TraceRow> rows = trace_rows();
  const std::vector<ReplayRequest> requests = replay_requests(rows, kScale, kVocabSize);
  const int64_t num_reusable = reusable_by_ids(rows);
  EXPECT_GT(num_reusable, 400000);
  EXPECT_EQ(num_reusable, sum_of(reusable_tokens(requests, kBlockSize)));

  // Ranks that compute a text from the KV they were told to use: a wrong block would show.
  const int32_t num_blocks = blocks_for_all(requests, kBlockSize);
  ReplaySettings settings = settings_for(requests, num_blocks);
  testing::FakeTarget ranks({.vocab_size = kVocabSize}, settings.planner);
  settings.execute = [&](const RoundPlan& plan) { return ranks.execute(plan); };
  const ReplayResult result = replay(requests, settings);
  ASSERT_TRUE(ranks.faults().empty()) << ranks.faults().front();
  EXPECT_GT(result.mean_running, 10);
  const double share =
      static_cast<double>(sum_of(result.num_cached)) / static_cast<double>(num_reusable);
  std::printf("reused %.2f%% of %lld reusable tokens, %.1f requests running on average\n",
              100 * share,
              static_cast<long long>(num_reusable),
              result.mean_running);
  EXPECT_GE(share, 0.95);
  EXPECT_LE(share, 1.0);
}

TEST(RecordedTrace, LessMemoryForgetsTheLeastRecentlyUsed) {
  if (trace_file().empty()) GTEST_SKIP() << "no ../shared/data and no OUTRIDER_DATA";
  const std::vector<ReplayRequest> requests = replay_requests(trace_rows(), kScale, kVocabSize);
  const int32_t num_blocks = blocks_for_all(requests, kBlockSize);
  const int64_t num_reusable = sum_of(reusable_tokens(requests, kBlockSize));
  double last = 1;
  for (const int32_t part : {2, 4, 10, 20}) {
    const ReplayResult result = replay(requests, settings_for(requests, num_blocks / part));
    const double share =
        static_cast<double>(sum_of(result.num_cached)) / static_cast<double>(num_reusable);
    std::printf("with 1/%d of the memory: %.2f%%, %llu preemptions\n",
                part,
                100 * share,
                static_cast<unsigned long long>(result.num_preemptions));
    EXPECT_LT(share, last);
    EXPECT_GT(share, 0.05);
    last = share;
  }
}

}  // namespace
}  // namespace outrider
