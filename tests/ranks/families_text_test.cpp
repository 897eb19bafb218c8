// Every family in whole jobs: the tiny models of tests/golden/models give the same greedy and
// seeded text with and without speculation, by prompt lookup and with the model as its own draft,
// on 1 and 2 target ranks; so do MXFP4 experts, and targets with experts with a dense draft of
// another family. Log-probabilities of prompts are those of transformers' logits.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/families/families.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMxfp4 = "mxfp4";

fs::path golden_dir(const std::string& name) {
  const char* kind = name == kMxfp4 ? "quantized" : "models";
  return fs::path(OUTRIDER_SOURCE_DIR) / "tests" / "golden" / kind / name;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names = {kMxfp4};
  for (const auto& entry : fs::directory_iterator(golden_dir(""))) {
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
    for (const auto& entry : fs::directory_iterator(golden_dir(name))) {
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
  std::vector<int32_t> positions;
  std::vector<float> logits;  // [positions, vocab]
  explicit GoldenText(const std::string& name) {
    std::ifstream file(golden_dir(name) / "golden.json");
    const auto golden = nlohmann::json::parse(file);
    prompt = golden.at("prompt").get<std::vector<int32_t>>();
    greedy = golden.at("greedy").get<std::vector<int32_t>>();
    positions = golden.at("logit_positions").get<std::vector<int32_t>>();
    // Of MXFP4: with inputs of integer products rounded, too.
    const fs::path raw = golden_dir(name) / (name == kMxfp4 ? "rounded.f32" : "logits.f32");
    logits.resize(fs::file_size(raw) / sizeof(float));
    std::ifstream(raw, std::ios::binary)
        .read(reinterpret_cast<char*>(logits.data()),
              static_cast<std::streamsize>(fs::file_size(raw)));
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
  const GoldenText golden(GetParam());
  const std::vector<int32_t>& prompt = golden.prompt;
  for (const int num_targets : {1, 2}) {
    RunConfig config = config_of(folder, num_targets);
    const Texts expected = texts_of(config, prompt);
    ASSERT_EQ(expected.tokens.size(), 3u);
    EXPECT_NE(expected.tokens[0], expected.tokens[1]);
    const auto first = std::span(golden.greedy).first(expected.tokens[0].size());
    if (GetParam() != kMxfp4) {  // transformers' text is that of inputs that are not rounded
      EXPECT_TRUE(std::equal(first.begin(), first.end(), expected.tokens[0].begin()));
    }
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

// What `echo` shows.
TEST_P(FamilyText, LogProbabilitiesOfAPromptAreThoseOfTransformers) {
  const Folder folder(GetParam());
  const GoldenText golden(GetParam());
  std::vector<int32_t> text = golden.prompt;
  text.insert(text.end(), golden.greedy.begin(), golden.greedy.end());
  SamplingParams params = greedy(0);
  params.num_logprobs = 0;
  params.prompt_logprobs = true;
  const size_t vocab = golden.logits.size() / golden.positions.size();
  // Two ranks cut stretches of inputs that are rounded together.
  const double tolerance = GetParam() == kMxfp4 ? 2e-3 : 2e-4;
  for (const int num_targets : {1, 2}) {
    Outcome scored;
    run_engine(config_of(folder, num_targets), [&](const FrontEndContext& context) {
      scored = collect(*submit(context.engine, text, params));
    });
    ASSERT_EQ(scored.prompt_logprobs.size(), text.size() - 1) << scored.error;
    for (size_t i = 0; i < golden.positions.size(); ++i) {
      const auto position = static_cast<size_t>(golden.positions[i]);
      const auto row = std::span(golden.logits).subspan(i * vocab, vocab);
      double sum = 0.0;
      float largest = 0.0f;
      for (const float logit : row) {
        sum += std::exp(static_cast<double>(logit));
        largest = std::max(largest, std::abs(logit));
      }
      const double expected = row[static_cast<size_t>(text[position + 1])] - std::log(sum);
      EXPECT_NEAR(scored.prompt_logprobs[position].logprob, expected, tolerance * largest)
          << num_targets << " ranks, position " << position;
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
