// Every family in whole jobs: the tiny models of tests/golden/models give the same greedy and
// seeded text with and without speculation, by prompt lookup and with the model as its own draft,
// on 1 and 2 target ranks; so do targets with experts with a dense draft of another family.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/families/families.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

namespace fs = std::filesystem;

fs::path golden_dir() { return fs::path(OUTRIDER_SOURCE_DIR) / "tests" / "golden" / "models"; }

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden_dir())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A golden model with a tokenizer of one word a token, which a job wants; num_tokens 0: as many as
// the model has rows.
class Folder {
 public:
  explicit Folder(const std::string& name, int32_t num_tokens = 0)
      : path_(fs::temp_directory_path() / fmt::format("outrider-{}-{}", name, ::getpid())) {
    fs::create_directories(path_);
    for (const auto& entry : fs::directory_iterator(golden_dir() / name)) {
      fs::copy(entry.path(), path_, fs::copy_options::overwrite_existing);
    }
    nlohmann::json vocab;
    const int32_t size = num_tokens > 0 ? num_tokens : load_model_config(path_).vocab_size;
    for (int32_t id = 0; id < size; ++id) vocab[fmt::format("t{}", id)] = id;
    const nlohmann::json tokenizer = {
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}},
        {"decoder", {{"type", "ByteLevel"}}},
        {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}};
    std::ofstream(path_ / "tokenizer.json") << tokenizer;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

struct Texts {
  std::vector<std::vector<int32_t>> tokens;
  int64_t num_drafted = 0;
  int64_t num_accepted = 0;
};

// A greedy and a seeded request at once, then a prompt that repeats itself.
Texts texts_of(const RunConfig& config, const std::vector<int32_t>& prompt) {
  std::vector<int32_t> twice = prompt;
  twice.insert(twice.end(), prompt.begin(), prompt.end());
  Texts texts;
  run_engine(config, [&](const FrontEndContext& context) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    for (const SamplingParams& params : {greedy(24), seeded(0.9f, 7, 24), greedy(12)}) {
      streams.push_back(submit(context.engine, streams.size() == 2 ? twice : prompt, params));
    }
    for (const auto& stream : streams) {
      ASSERT_NE(stream, nullptr);
      const Outcome outcome = collect(*stream);
      EXPECT_EQ(outcome.error, "");
      texts.tokens.push_back(outcome.tokens);
      texts.num_drafted += outcome.stats.num_draft_tokens;
      texts.num_accepted += outcome.stats.num_accepted_tokens;
    }
  });
  return texts;
}

struct GoldenText {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  explicit GoldenText(const std::string& name) {
    std::ifstream file(golden_dir() / name / "golden.json");
    const auto golden = nlohmann::json::parse(file);
    prompt = golden.at("prompt").get<std::vector<int32_t>>();
    greedy = golden.at("greedy").get<std::vector<int32_t>>();
  }
};

RunConfig config_of(const Folder& target, int num_targets) {
  RunConfig config = embedded_config(num_targets, 0);
  config.model = target.path();
  config.max_model_len = 128;
  return config;
}

void set_draft(RunConfig& config, const std::string& method, const std::string& model) {
  config.speculative.num_speculative_tokens = 4;
  config.speculative.draft_patience_s = 5;
  config.speculative.method = method;
  config.speculative.prompt_lookup_min = 1;
  config.speculative.model = model;
  config.speculative.backup = "none";
}

class FamilyText : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyText, SameWithAndWithoutSpeculation) {
  const Folder folder(GetParam());
  const auto [prompt, reference] = GoldenText(GetParam());
  for (const int num_targets : {1, 2}) {
    RunConfig config = config_of(folder, num_targets);
    const Texts expected = texts_of(config, prompt);
    ASSERT_EQ(expected.tokens.size(), 3u);
    EXPECT_NE(expected.tokens[0], expected.tokens[1]);
    EXPECT_TRUE(
        std::equal(expected.tokens[0].begin(), expected.tokens[0].end(), reference.begin()));
    for (const char* method : {"ngram", "draft_model"}) {
      const bool is_ngram = method == std::string("ngram");
      set_draft(config, method, is_ngram ? "" : folder.path());
      const Texts texts = texts_of(config, prompt);
      EXPECT_EQ(texts.tokens, expected.tokens) << num_targets << " ranks, " << method;
      // Random text may repeat nothing: then every draft token of the lookup is rejected.
      EXPECT_GT(is_ngram ? texts.num_drafted : texts.num_accepted, 0)
          << num_targets << " ranks, " << method;
    }
  }
}

// One tokenizer, two families: the draft has rows for tokens that nobody has.
TEST(PairsOfFamilies, ADenseDraftChangesNoTextOfATargetWithExperts) {
  int64_t num_accepted = 0;
  for (const char* name : {"mixtral-bf16", "qwen3_moe-bf16", "granitemoe-bf16", "glm4_moe-f16"}) {
    const Folder target(name);
    const Folder draft("llama-untied-bf16", load_model_config(target.path()).vocab_size);
    for (const int num_targets : {1, 2}) {
      RunConfig config = config_of(target, num_targets);
      const Texts expected = texts_of(config, GoldenText(name).prompt);
      set_draft(config, "draft_model", draft.path());
      const Texts texts = texts_of(config, GoldenText(name).prompt);
      EXPECT_EQ(texts.tokens, expected.tokens) << name << ", " << num_targets << " ranks";
      EXPECT_GT(texts.num_drafted, 0) << name;
      num_accepted += texts.num_accepted;
    }
  }
  EXPECT_GT(num_accepted, 0);
}

INSTANTIATE_TEST_SUITE_P(Families,
                         FamilyText,
                         ::testing::ValuesIn(golden_names()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider::test
