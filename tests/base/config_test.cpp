// From command line, environment and YAML to a RunConfig: precedence, replaced lists, and every way
// in which a file can be wrong.
#include "runtime/base/settings/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

// Not `load_config(...).config.x`: GCC 12 warns of the members of such temporaries.
RunConfig config_of(const Arguments& arguments) {
  const LoadedConfig loaded = load_config(arguments);
  return loaded.config;
}

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "config_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    fs::remove_all(folder_);
  }

  void set_environment(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  std::string yaml(const std::string& text) {
    const fs::path path = folder_ / "run.yaml";
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  RunConfig from_yaml(const std::string& text) { return config_of({"--config", yaml(text)}); }
  ::testing::AssertionResult yaml_fails(const std::string& text, const std::string& part) {
    return fails_with([&] { from_yaml(text); }, part);
  }

  fs::path folder_;
  std::vector<std::string> names_;
};

TEST_F(ConfigTest, DefaultsStandWhereNothingIsGiven) {
  const LoadedConfig loaded = load_config({});
  EXPECT_EQ(loaded.config.model, "embedded");
  EXPECT_EQ(loaded.config.port, 8000);
  EXPECT_EQ(loaded.config.host, "127.0.0.1");
  EXPECT_TRUE(loaded.config.api_keys.empty());
  EXPECT_TRUE(loaded.given.empty());
}

TEST_F(ConfigTest, AGpuRunsMoreSequencesAtOnce) {
  EXPECT_EQ(load_config({}).config.max_num_seqs, 16);
  EXPECT_EQ(load_config({"--device", "cuda"}).config.max_num_seqs, 64);
  EXPECT_EQ(load_config({"--device", "cuda", "-np", "2"}).config.max_num_seqs, 2);
}

TEST_F(ConfigTest, CommandLineOverEnvironmentOverYamlOverDefaults) {
  const std::string file =
      yaml("port: 1\nmax_num_seqs: 2\nblock-size: 3\nspeculative_config:\n  method: ngram\n");
  set_environment("OUTRIDER_PORT", "10");
  set_environment("OUTRIDER_MAX_NUM_SEQS", "20");
  set_environment("OUTRIDER_SPECULATIVE_CONFIG_METHOD", "none");
  const LoadedConfig loaded = load_config({"--port=100", "--config", file});
  EXPECT_EQ(loaded.config.port, 100);
  EXPECT_EQ(loaded.config.max_num_seqs, 20);
  EXPECT_EQ(loaded.config.block_size, 3);
  EXPECT_EQ(loaded.config.max_num_batched_tokens, RunConfig{}.max_num_batched_tokens);
  EXPECT_EQ(loaded.config.speculative.method, "none");
  EXPECT_EQ(config_of({"--config", file, "--speculative-config", "{\"method\": \"auto\"}"})
                .speculative.method,
            "auto");
  EXPECT_EQ(config_of({"--speculative-config",
                       "{\"method\": \"auto\"}",
                       "--speculative-config.method",
                       "ngram"})
                .speculative.method,
            "ngram")
      << "the single option is the more precise one";
}

TEST_F(ConfigTest, TheFileMayBeNamedByTheEnvironment) {
  set_environment("OUTRIDER_CONFIG", yaml("port: 1\n"));
  EXPECT_EQ(config_of({}).port, 1);
  const fs::path other = folder_ / "other.yaml";
  std::ofstream(other) << "port: 2\n";
  EXPECT_EQ(config_of({"--config", other.string()}).port, 2);
}

TEST_F(ConfigTest, ALaterSourceReplacesAList) {
  const std::string file = yaml("api_key: [one, two]\n");
  EXPECT_EQ(config_of({"--config", file}).api_keys, (Arguments{"one", "two"}));
  EXPECT_EQ(config_of({"--config", file, "--api-key", "a", "--api-key", "b"}).api_keys,
            (Arguments{"a", "b"}));
  set_environment("OUTRIDER_API_KEY", "env");
  EXPECT_EQ(config_of({"--config", file}).api_keys, Arguments{"env"});
  EXPECT_EQ(config_of({"--api-key", "a"}).api_keys, Arguments{"a"});
  EXPECT_EQ(from_yaml("api_key: single\nport: 1\n").port, 1);
}

TEST_F(ConfigTest, AnEmptyKeyIsRefusedWhereverItComesFrom) {
  EXPECT_TRUE(yaml_fails("api_key:\n", "api_key: an entry is empty"));
  EXPECT_TRUE(yaml_fails("api_key: ['']\n", "api_key: an entry is empty"));
  EXPECT_TRUE(fails_with([] { load_config({"--api-key="}); }, "an entry is empty"));
  set_environment("OUTRIDER_API_KEY", "");
  EXPECT_EQ(error_of([] { load_config({}); }),
            "api_key: an entry is empty (from OUTRIDER_API_KEY)");
}

TEST_F(ConfigTest, GroupsAndTheirDottedForm) {
  EXPECT_EQ(from_yaml("speculative_config.method: ngram\n").speculative.method, "ngram");
  EXPECT_EQ(from_yaml("speculative-config:\n  num-speculative-tokens: 7\n")
                .speculative.num_speculative_tokens,
            7);
  EXPECT_EQ(from_yaml("speculative_config:\n  # nothing yet\n").speculative.method, "auto");
  EXPECT_TRUE(yaml_fails("speculative_config.method: ngram\nspeculative_config: {method: auto}\n",
                         "'speculative_config.method' has several values"));
}

TEST_F(ConfigTest, OldNamesAreUnderstoodEverywhere) {
  EXPECT_EQ(config_of({"--speculative-config.ride-ahead=chain"}).speculative.async_drafting,
            "chain");
  EXPECT_EQ(from_yaml("speculative_config: {ride_ahead: chain}\n").speculative.async_drafting,
            "chain");
  EXPECT_EQ(
      config_of({"--speculative-config", R"({"ride_ahead": "off"})"}).speculative.async_drafting,
      "off");
  EXPECT_TRUE(yaml_fails("speculative_config: {ride_ahead: chain, async_drafting: off}\n",
                         "'speculative_config.async_drafting' has several values"));
}

TEST_F(ConfigTest, DraftLengthAndAsyncDrafting) {
  EXPECT_EQ(config_of({}).speculative.num_speculative_tokens, kAutoDraftLen);
  EXPECT_EQ(config_of({}).speculative.longest_draft_len(), 16);
  EXPECT_EQ(config_of({}).speculative.async_drafting, "auto");
  const RunConfig fixed =
      config_of({"--draft-max", "5", "--speculative-config.async-drafting=off"});
  EXPECT_EQ(fixed.speculative.num_speculative_tokens, 5);
  EXPECT_EQ(fixed.speculative.longest_draft_len(), 5);
  EXPECT_EQ(fixed.speculative.async_drafting, "off");
  EXPECT_EQ(from_yaml("speculative_config: {num_speculative_tokens: auto}\n")
                .speculative.longest_draft_len(),
            16);
  const std::string group = "speculative_config: ";
  EXPECT_TRUE(yaml_fails(group + "{num_speculative_tokens: 0}\n", "0 is not between 1 and 64"));
  EXPECT_TRUE(
      yaml_fails(group + "{num_speculative_tokens: some}\n", "'some' is not a whole number"));
  EXPECT_TRUE(
      yaml_fails(group + "{async_drafting: far}\n", "'far' is not one of auto, off, chain, cache"));
  EXPECT_NE(dump_config(load_config({})).find("  num_speculative_tokens: auto  # default\n"),
            std::string::npos);
}

TEST_F(ConfigTest, WhatEmptyMeansDependsOnTheKey) {
  EXPECT_EQ(from_yaml("served_model_name:\n").served_model_name, "");
  EXPECT_TRUE(yaml_fails("port:\n", "port: '' is not a whole number"));
  EXPECT_TRUE(yaml_fails("prot:\n", "did you mean 'port'?"));
  EXPECT_EQ(from_yaml("").port, 8000);
  EXPECT_EQ(from_yaml("# only words\n").port, 8000);
}

TEST_F(ConfigTest, WrongFilesAreOneSentenceWithTheLine) {
  EXPECT_TRUE(
      yaml_fails("port: 1\nmax_num_seq: 3\n", "'max_num_seq', did you mean 'max_num_seqs'?"));
  EXPECT_TRUE(yaml_fails("port: 1\nmax_num_seq: 3\n", "run.yaml:2)"));
  EXPECT_TRUE(yaml_fails("port: high\n", "port: 'high' is not a whole number (from "));
  EXPECT_TRUE(yaml_fails("port: 70000\n", "70000 is not between 0 and 65535"));
  EXPECT_TRUE(yaml_fails("port: 1\nhost: x\nport: 2\n", "the key 'port' is there twice"));
  EXPECT_TRUE(yaml_fails("max-num-seqs: 1\nmax_num_seqs: 2\n", "'max_num_seqs' is there twice"));
  EXPECT_TRUE(yaml_fails("speculative_config: {method: auto, method: ngram}\n",
                         "'speculative_config.method' is there twice"));
  EXPECT_TRUE(yaml_fails("port: [1, 2]\n", "'port' has several values"));
  EXPECT_TRUE(yaml_fails("port: {a: 1}\n", "unknown option 'port.a'"));
  EXPECT_TRUE(yaml_fails("- port\n", "not a list of 'key: value' lines"));
  EXPECT_TRUE(yaml_fails("just words\n", "not a list of 'key: value' lines"));
  EXPECT_TRUE(yaml_fails("port: [1\n", "run.yaml: "));
  EXPECT_TRUE(yaml_fails("[1, 2]: 3\n", "run.yaml: "));
}

TEST_F(ConfigTest, DeepAndLargeFilesAreRefused) {
  EXPECT_TRUE(yaml_fails("a: {b: {c: {d: {e: 1}}}}\n", "nested too deep"));
  EXPECT_TRUE(yaml_fails("port: " + std::string(100000, '[') + "\n", "run.yaml"));
  EXPECT_TRUE(yaml_fails("port: " + std::string(100000, '{') + "\n", "run.yaml"));
  EXPECT_TRUE(yaml_fails(std::string((1 << 20) + 1, '#'), "larger than 1048576 bytes"));
  const auto list_of = [](const std::string& element, int count) {
    std::string list = "[" + element;
    for (int i = 1; i < count; ++i) list += ", " + element;
    return list + "]\n";
  };
  EXPECT_TRUE(yaml_fails(
      "a: &a " + list_of("x", 20) + "b: &b " + list_of("*a", 20) + "c: " + list_of("*b", 30),
      "more than 10000 values"));
  // Lists count that hold nothing.
  EXPECT_TRUE(yaml_fails(
      "a: &a " + list_of("[]", 30) + "b: &b " + list_of("*a", 30) + "c: " + list_of("*b", 30),
      "more than 10000 values"));
}

TEST_F(ConfigTest, AFileThatIsNotThere) {
  const std::string none = (folder_ / "none.yaml").string();
  EXPECT_TRUE(fails_with([&] { config_of({"--config", none}); }, "none.yaml: cannot be opened"));
  EXPECT_TRUE(fails_with([&] { config_of({"--config", folder_.string()}); }, "cannot be read"));
}

TEST_F(ConfigTest, OwnOptionsOfACommandAndPositionals) {
  std::string input;
  const Option extra = with_aliases(text_option("input", &input, ""), {"-i"});
  const LoadedConfig loaded = load_config(
      {"-i", "in.jsonl", "word", "-tp", "2"}, {&extra}, {.most = 2, .are_model = false});
  EXPECT_EQ(input, "in.jsonl");
  EXPECT_TRUE(loaded.is_given("input"));
  EXPECT_TRUE(loaded.is_given("tensor_parallel_size"));
  EXPECT_FALSE(loaded.is_given("port"));
  EXPECT_EQ(loaded.positional, Arguments{"word"});
  EXPECT_EQ(loaded.config.model, "embedded");
  EXPECT_EQ(loaded.config.tensor_parallel_size, 2);
  EXPECT_TRUE(yaml_fails("input: x\n", "unknown option 'input'")) << "command line only";
}

TEST_F(ConfigTest, ATildeIsTheHomeFolderInEverySource) {
  set_environment("OUTRIDER_CHAT_TEMPLATE", "~/x.jinja");
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  ::setenv("HOME", "/a-home", 1);
  const std::string file = yaml("speculative_config:\n  model: ~/draft\n");
  const LoadedConfig loaded = load_config({"--model=~/target", "--config", file, "--trace", "~"});
  EXPECT_EQ(loaded.config.model, "/a-home/target");
  EXPECT_EQ(loaded.config.speculative.model, "/a-home/draft");
  EXPECT_EQ(loaded.config.chat_template, "/a-home/x.jinja");
  EXPECT_EQ(loaded.config.trace, "/a-home");
  EXPECT_EQ(config_of({"--model", "~other/x"}).model, "~other/x") << "as it is";
  EXPECT_EQ(config_of({"--model", "a~/x"}).model, "a~/x");
  ::unsetenv("HOME");
  EXPECT_TRUE(fails_with([] { load_config({"--model", "~/x"}); }, "needs HOME, which is not set"));
  ::setenv("HOME", home.c_str(), 1);
}

TEST_F(ConfigTest, OtherServersOptionsThatChangeNothingAreTakenWithASentence) {
  const LoadedConfig loaded = load_config({"--trust-remote-code",
                                           "--load-format=auto",
                                           "-pp",
                                           "1",
                                           "--jinja",
                                           "-ngl",
                                           "99",
                                           "-fa",
                                           "on",
                                           "--no-mmap",
                                           "-n",
                                           "-1",
                                           "a-model"});
  EXPECT_EQ(loaded.config.model, "a-model");
  ASSERT_EQ(loaded.accepted.size(), 8U);
  EXPECT_EQ(loaded.accepted[0],
            "--trust-remote-code changes nothing here: no code of a model is ever run");
  EXPECT_EQ(loaded.accepted[4],
            "--gpu-layers 99 changes nothing here: --device cuda puts all on GPUs");
  EXPECT_EQ(loaded.accepted[6],
            "--mmap false changes nothing here: each thread reads the weights that it will use");
  EXPECT_EQ(dump_config(loaded).find("gpu_layers"), std::string::npos);
  const LoadedConfig written = load_config({"--config", yaml("trust-remote-code: true\n")});
  EXPECT_EQ(written.accepted.size(), 1U);
  EXPECT_EQ(load_config({"-fa", "--jinja", "m"}).accepted.size(), 2U) << "-fa without a value";
}

TEST_F(ConfigTest, ValuesOfTheirsThatWouldChangeSomethingAreRefused) {
  const auto sentence = [](const Arguments& arguments) {
    return error_of([&] { load_config(arguments); });
  };
  EXPECT_EQ(sentence({"-pp", "2"}),
            "pipeline_parallel_size: '2' cannot be had, only 1: target ranks are "
            "--tensor-parallel-size, one server is one replica (from command line)");
  EXPECT_EQ(sentence({"--no-enable-chunked-prefill"}),
            "enable_chunked_prefill: cannot be turned off: long prompts are always cut into "
            "chunks (from command line)");
  EXPECT_EQ(sentence({"--context-shift"}),
            "context_shift: cannot be had: a full context ends the answer (from command line)");
  EXPECT_EQ(sentence({"--top-k", "40"}),
            "top_k: cannot be set: sampling defaults are the model's generation_config.json (from "
            "command line)");
  EXPECT_EQ(sentence({"-ctk", "q8_0"}),
            "cache_type_k: 'q8_0' cannot be had, only f16, f32: --kv-cache-dtype bfloat16 or int8 "
            "(as q8_0) is the type of keys and values alike (from command line)");
  EXPECT_EQ(sentence({"--kv-cache-dtype", "fp8"}),
            "kv_cache_dtype: 'fp8' is not one of auto, float32, bfloat16, int8 (from command "
            "line)");
  EXPECT_EQ(sentence({"--trust-remote-cod"}),
            "unknown option --trust-remote-cod; did you mean --trust-remote-code?");
  EXPECT_EQ(sentence({"--speculative-config", R"({"draft_tensor_parallel_size": 2})"}),
            "speculative_config.draft_tensor_parallel_size: '2' cannot be had, only 1: a draft "
            "model has one rank (from --speculative-config:1)");
}

TEST_F(ConfigTest, NamesOfOtherServersAreUnderstood) {
  for (const char* own : {"auto", "float32", "bfloat16", "int8"}) {
    EXPECT_EQ(config_of({"--kv-cache-dtype", own}).kv_cache_dtype, own);
  }
  EXPECT_EQ(config_of({"--kv-cache-dtype", "bf16"}).kv_cache_dtype, "bfloat16");
  EXPECT_EQ(from_yaml("kv_cache_dtype: int8_per_token_head\n").kv_cache_dtype, "int8");
  EXPECT_EQ(config_of({"--dtype", "bfloat16"}).activation_dtype, "bfloat16");
  EXPECT_EQ(config_of({"--seed", "7"}).default_seed, 7);
  EXPECT_EQ(from_yaml("seed: 7\ndtype: auto\n").default_seed, 7);
  int32_t own = 0;
  const Option seed = integer_option("seed", &own, 0, 100, "");
  const LoadedConfig bench = load_config({"--seed", "9"}, {&seed});
  EXPECT_EQ(own, 9) << "a command's own option is meant first";
  EXPECT_EQ(bench.config.default_seed, -1);
}

TEST_F(ConfigTest, AWordIsTheModelAndNoneIsIgnored) {
  const std::string file = yaml("model: of-the-file\n");
  const LoadedConfig loaded = load_config({"--config", file, "a-model"});
  EXPECT_EQ(loaded.config.model, "a-model");
  EXPECT_TRUE(loaded.positional.empty());
  const LoadedConfig same = load_config({"a-model", "-m", "a-model"});
  EXPECT_EQ(same.config.model, "a-model");
  EXPECT_EQ(error_of([] {
              load_config({"a-model", "--model", "b-model"});
            }),
            "'a-model' and --model b-model are two models: give one");
  EXPECT_EQ(error_of([] {
              load_config({"a-model", "-tp", "2", "more"});
            }),
            "unexpected argument 'more'");
  EXPECT_EQ(error_of([] { load_config({"a-model"}, {}, kNoWords); }),
            "unexpected argument 'a-model'");
  EXPECT_EQ(error_of([] {
              load_config({"a", "b", "c"}, {}, {.most = 2, .are_model = false});
            }),
            "unexpected argument 'c'");
}

TEST_F(ConfigTest, TheDumpTellsOriginsHidesKeysAndReadsBack) {
  const std::string file = yaml("port: 1234\nmodel: 'a \"b\" \\ c'\napi_key: [secret]\n");
  set_environment("OUTRIDER_BLOCK_SIZE", "8");
  const std::string dump =
      dump_config(load_config({"--config", file, "--speculative-config.method=ngram"}));
  EXPECT_NE(dump.find("port: 1234  # " + file + ":1\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("block_size: 8  # OUTRIDER_BLOCK_SIZE\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("speculative_config:\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("  method: ngram  # command line\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("max_num_seqs: 16  # default\n"), std::string::npos) << dump;
  EXPECT_EQ(dump.find("secret"), std::string::npos) << dump;
  ::unsetenv("OUTRIDER_BLOCK_SIZE");
  const RunConfig again = from_yaml(dump);
  EXPECT_EQ(again.port, 1234);
  EXPECT_EQ(again.block_size, 8);
  EXPECT_EQ(again.model, "a \"b\" \\ c");
  EXPECT_EQ(again.speculative.method, "ngram");
}

}  // namespace
}  // namespace outrider
