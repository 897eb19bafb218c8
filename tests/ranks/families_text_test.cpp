// Every family in whole jobs: the tiny models of tests/golden/models give the same greedy and
// seeded text with and without speculation, by prompt lookup and with the model as its own draft,
// on 1 and 2 target ranks.
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

// A golden model with a tokenizer of one letter a token, which a job wants.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::temp_directory_path() / fmt::format("outrider-{}-{}", name, ::getpid())) {
    fs::create_directories(path_);
    for (const auto& entry : fs::directory_iterator(golden_dir() / name)) {
      fs::copy(entry.path(), path_, fs::copy_options::overwrite_existing);
    }
    nlohmann::json vocab;
    const int32_t size = load_model_config(path_).vocab_size;
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

class FamilyText : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyText, SameWithAndWithoutSpeculation) {
  const Folder folder(GetParam());
  std::ifstream file(golden_dir() / GetParam() / "golden.json");
  const auto golden = nlohmann::json::parse(file);
  const auto prompt = golden.at("prompt").get<std::vector<int32_t>>();
  const auto reference = golden.at("greedy").get<std::vector<int32_t>>();
  for (const int num_targets : {1, 2}) {
    RunConfig config = embedded_config(num_targets, 0);
    config.model = folder.path();
    config.max_model_len = 128;
    const Texts expected = texts_of(config, prompt);
    ASSERT_EQ(expected.tokens.size(), 3u);
    EXPECT_NE(expected.tokens[0], expected.tokens[1]);
    EXPECT_TRUE(
        std::equal(expected.tokens[0].begin(), expected.tokens[0].end(), reference.begin()));
    config.speculative.num_speculative_tokens = 4;
    config.speculative.draft_patience_s = 5;
    for (const char* method : {"ngram", "draft_model"}) {
      config.speculative.method = method;
      config.speculative.prompt_lookup_min = 1;
      const bool is_ngram = method == std::string("ngram");
      config.speculative.model = is_ngram ? "" : folder.path();
      config.speculative.backup = "none";
      const Texts texts = texts_of(config, prompt);
      EXPECT_EQ(texts.tokens, expected.tokens) << num_targets << " ranks, " << method;
      // Random text may repeat nothing: then every draft token of the lookup is rejected.
      EXPECT_GT(is_ngram ? texts.num_drafted : texts.num_accepted, 0)
          << num_targets << " ranks, " << method;
    }
  }
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
