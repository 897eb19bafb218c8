// What is given in place of a model folder: each mistake is told for what it is, with what mends
// it.
#include "models/checkpoint/folder_mistakes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "models/checkpoint/hub_cache.h"
#include "models/checkpoint/model_config.h"
#include "models/checkpoint/safetensors.h"
#include "models/families/families.h"
#include "models/text/tokenizer.h"
#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

class FolderMistakes : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "folder_mistakes_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    ::setenv("HF_HUB_CACHE", (folder_ / "hub").c_str(), 1);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    ::unsetenv("HF_HUB_CACHE");
  }

  // A file in the folder, with the folders on its way.
  std::string write(const std::string& name, const std::string& text = "x") const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  ::testing::AssertionResult no_config(const std::string& part) const {
    return fails_with([&] { load_model_config(folder_); }, part);
  }
  static ::testing::AssertionResult no_folder(const std::string& name, const std::string& part) {
    return fails_with([&] { find_model_folder(name); }, part);
  }

  fs::path folder_;
};

TEST_F(FolderMistakes, AFileIsNoFolder) {
  EXPECT_EQ(find_model_folder(write("x.gguf")), folder_ / "x.gguf");
  EXPECT_TRUE(no_folder((folder_ / "y.gguf").string(), "does not exist"));
  EXPECT_TRUE(no_folder(write("alone.safetensors"), "is a file: give a Hugging Face model folder"));
  const std::string weights = write("model.safetensors");
  write("config.json");
  EXPECT_TRUE(no_folder(weights, "give its folder, '" + folder_.string() + "'"));
  EXPECT_EQ(find_model_folder(folder_.string()), folder_);
}

TEST_F(FolderMistakes, WhatIsNotThereIsNotDownloaded) {
  EXPECT_TRUE(no_folder("/no/such/folder",
                        "does not exist (nothing is downloaded: give a Hugging Face folder)"));
  EXPECT_TRUE(no_folder("Qwen/Qwen3-0.6B",
                        "does not exist, nor is the model in the cache " +
                            (folder_ / "hub").string() +
                            " (nothing is downloaded: get it with 'hf download Qwen/Qwen3-0.6B')"));
  for (const std::string name : {"./folder", "~/folder", "folder/", "folder"})
    EXPECT_TRUE(no_folder(name, "give a Hugging Face folder")) << name;
}

TEST_F(FolderMistakes, TheCacheOfHuggingFaceLeadsToASnapshot) {
  const fs::path cache = folder_ / "models--org--name";
  write("models--org--name/snapshots/abc/config.json");
  EXPECT_EQ(find_model_folder(cache.string()), cache / "snapshots" / "abc") << "the only one";
  write("models--org--name/snapshots/def/config.json");
  EXPECT_TRUE(no_folder(cache.string(), "holds 2 snapshots and no refs/main"));
  write("models--org--name/refs/main", "def\n");
  EXPECT_EQ(find_model_folder(cache.string()), cache / "snapshots" / "def");
  for (const std::string hash : {"gone", "", "../snapshots/abc", ".."}) {
    write("models--org--name/refs/main", hash);
    EXPECT_TRUE(no_folder(cache.string(), "names a snapshot that is not there")) << hash;
  }
}

TEST_F(FolderMistakes, ANameOfTheHubIsFoundInTheCache) {
  const fs::path model = folder_ / "hub" / "models--org--name";
  write("hub/models--org--name/snapshots/abc/config.json");
  write("hub/models--org--name/snapshots/def/config.json");
  write("hub/models--org--name/refs/main", "abc");
  write("hub/models--org--name/refs/pr/1", "def");
  write("hub/models--gpt2/snapshots/123/config.json");
  EXPECT_EQ(find_model_folder("org/name"), model / "snapshots" / "abc");
  EXPECT_EQ(find_model_folder("org/name@pr/1"), model / "snapshots" / "def");
  EXPECT_EQ(find_model_folder("org/name@def"), model / "snapshots" / "def") << "a commit";
  EXPECT_EQ(find_model_folder("gpt2"), folder_ / "hub/models--gpt2/snapshots/123");
  EXPECT_TRUE(no_folder("org/name@v2", "'hf download org/name --revision v2'"));
  for (const std::string name : {"org/name@../../x", "org/../name", "a/b/c", "org/name@"})
    EXPECT_TRUE(no_folder(name, "give a Hugging Face folder")) << name;
}

TEST_F(FolderMistakes, TheCacheLiesWhereHuggingFaceSays) {
  ::setenv("HF_HOME", "/data/hf", 1);
  EXPECT_EQ(hub_cache(), folder_ / "hub");
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(hub_cache(), "/data/hf/hub");
  ::setenv("HF_HOME", "~/hf", 1);
  const char* home = std::getenv("HOME");
  const std::string old_home = home == nullptr ? "" : home;
  ::setenv("HOME", "/users/me", 1);
  EXPECT_EQ(hub_cache(), "/users/me/hf/hub");
  ::unsetenv("HF_HOME");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(hub_cache(), "/users/me/.cache/huggingface/hub");
  ::setenv("HOME", old_home.c_str(), 1);
}

TEST_F(FolderMistakes, ADownloadThatWasCutOffIsNamed) {
  const std::string name = "hub/models--org--name/snapshots/abc/";
  write(name + "config.json");
  const fs::path snapshot = folder_ / name;
  const auto no_weights = [&](const std::string& part) {
    return fails_with([&] { Checkpoint{find_model_folder("org/name")}; }, part);
  };
  EXPECT_TRUE(no_weights("has neither model.safetensors nor"));
  write("hub/models--org--name/blobs/1234.incomplete");
  EXPECT_TRUE(no_weights("its download is not complete: get the rest with 'hf download org/name"));
  fs::create_symlink("../../blobs/1234", snapshot / "model.safetensors");
  EXPECT_TRUE(no_weights("model.safetensors: its data are not in the cache's blobs"));
}

TEST_F(FolderMistakes, AMissingShardIsNamed) {
  write("model.safetensors.index.json", R"({"weight_map": {"a": "model-1.safetensors"}})");
  EXPECT_TRUE(fails_with([&] { Checkpoint{folder_}; },
                         "model-1.safetensors: is not there, though model.safetensors.index.json"));
}

TEST_F(FolderMistakes, WhatLiesThereInPlaceOfAConfigIsNamed) {
  EXPECT_TRUE(no_config("is an empty folder, not a model"));
  write("notes.txt");
  EXPECT_TRUE(no_config("has no config.json, so it is no Hugging Face model folder"));
  write("weights.gguf");
  EXPECT_TRUE(no_config("has a GGUF file and no config.json"));
  write("target/config.json");
  write("draft/config.json");
  EXPECT_TRUE(no_config("holds two models: give --model " + (folder_ / "target").string() +
                        " --speculative-config.model "));
  write("adapter_config.json");
  EXPECT_TRUE(no_config("holds a LoRA adapter, not a model: merge it into its base model first"));
}

TEST_F(FolderMistakes, WeightsInAnotherFormatAreNamed) {
  const auto no_weights = [&](const std::string& part) {
    return fails_with([&] { Checkpoint{folder_}; }, part);
  };
  EXPECT_TRUE(no_weights("has neither model.safetensors nor model.safetensors.index.json"));
  write("pytorch_model-00001-of-00002.bin");
  EXPECT_TRUE(no_weights("in pytorch_model-00001-of-00002.bin only, which is not read: convert"));
  fs::remove(folder_ / "pytorch_model-00001-of-00002.bin");
  write("consolidated.00.pth");
  EXPECT_TRUE(no_weights("in consolidated.00.pth only, which is not read: convert"));
  write("adapter_config.json");
  EXPECT_TRUE(no_weights("holds a LoRA adapter"));
}

TEST_F(FolderMistakes, AMissingTokenizerSaysHowToMakeIt) {
  const auto no_tokenizer = [&](const std::string& part) {
    return fails_with([&] { Tokenizer::load(folder_); }, part);
  };
  EXPECT_TRUE(no_tokenizer("has no tokenizer.json"));
  write("tokenizer.model");
  EXPECT_TRUE(no_tokenizer("has tokenizer.model but no tokenizer.json: make it, python3 -c"));
}

TEST_F(FolderMistakes, AGitLfsPointerIsNamedInEveryFile) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb"
      "8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const std::string sentence = "is a Git LFS pointer, not the file itself: run 'git lfs pull'";
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    write(name, pointer);
  EXPECT_TRUE(no_config(sentence));
  EXPECT_TRUE(fails_with([&] { Checkpoint{folder_}; }, sentence));
  EXPECT_TRUE(fails_with([&] { Tokenizer::load(folder_); }, sentence));
}

}  // namespace
}  // namespace outrider
