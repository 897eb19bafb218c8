// Whole files with a cap, regular files only where that is promised, and the depth of JSON texts.
#include "runtime/base/files/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/files/json_depth.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "files_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& text) {
    const fs::path path = folder_ / "file";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  fs::path folder_;
};

TEST_F(FilesTest, BothReadersReadAllOfAFileUpToTheCap) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{65536}, size_t{65537}, size_t{200000}}) {
    std::string text(size, '\0');
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31);
    const fs::path path = write(text);
    EXPECT_EQ(read_regular_file(path, size), text);
    EXPECT_EQ(read_text_file(path, size), text);
    if (size == 0) continue;
    EXPECT_THROW(read_regular_file(path, size - 1), Error);
    EXPECT_THROW(read_text_file(path, size - 1), Error);
  }
}

TEST_F(FilesTest, FoldersAndMissingFilesAreErrors) {
  for (const fs::path& path : {folder_, folder_ / "none"}) {
    EXPECT_THROW(read_regular_file(path, 10), Error);
    EXPECT_THROW(read_text_file(path, 10), Error);
  }
}

TEST_F(FilesTest, APipeIsReadOnlyWhereTheUserNamesIt) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(read_regular_file(pipe, 10), Error) << "refused without waiting for a writer";
  std::thread writer([&] { std::ofstream(pipe) << "from a pipe"; });
  EXPECT_EQ(read_text_file(pipe, 100), "from a pipe");
  writer.join();
}

TEST_F(FilesTest, PositionedReadsEndWithTheFile) {
  const ReadOnlyFile file(write("0123456789"));
  char out[4] = {};
  file.read_at(6, out, 4);
  EXPECT_EQ(std::string(out, 4), "6789");
  EXPECT_THROW(file.read_at(7, out, 4), Error);
  EXPECT_THROW(file.read_at(100, out, 1), Error);
  EXPECT_EQ(file.size_bytes(), 10u);
}

TEST(JsonDepth, CountsBracketsOutsideStrings) {
  EXPECT_FALSE(json_nests_deeper_than("", 0));
  EXPECT_FALSE(json_nests_deeper_than("1", 0));
  EXPECT_TRUE(json_nests_deeper_than("[]", 0));
  EXPECT_FALSE(json_nests_deeper_than("[{},[],{}]", 2));
  EXPECT_TRUE(json_nests_deeper_than("[{},[],{}]", 1));
  EXPECT_FALSE(json_nests_deeper_than(R"(["[[[[", "\"[[[[", "\\"])", 1));
  EXPECT_TRUE(json_nests_deeper_than(R"(["\\",[[]]])", 2));
  EXPECT_FALSE(json_nests_deeper_than(R"(["torn \)", 1));
  EXPECT_TRUE(json_nests_deeper_than(std::string(1000000, '['), 64));
}

}  // namespace
}  // namespace outrider
