// The two files of `outrider batch`: which input lines are taken, what is said of the others, and
// that the results never go over something else.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "http/batches/batch_lines.h"
#include "http/batches/result_file.h"
#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

class BatchFiles : public ::testing::Test {
 protected:
  BatchFiles() { fs::create_directories(folder_); }
  ~BatchFiles() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::vector<BatchLine> lines_of(const std::string& text) const {
    EngineInfo info;
    info.max_model_len = 64;
    info.vocab_size = 100;
    const GenerationDefaults defaults;
    const CallLimits limits;
    const std::vector<int32_t> ends;
    const AnswerFormats formats = choose_answer_formats({}, "auto", "auto");
    return read_batch_lines(write("in.jsonl", text), {info, defaults, limits, ends, formats});
  }

  // What the file holds after a resumed run has added the result of "new".
  std::string resumed(const std::string& text, const std::set<std::string>& ids) const {
    const std::string name = write("out.jsonl", text);
    ResultFile file(name, ids, true);
    file.append({.custom_id = "new", .body = "{}"});
    file.finish();
    return read(name);
  }

  // Not by the process's number, which one that was killed may have had before.
  static fs::path new_folder() {
    std::string name = (fs::temp_directory_path() / "batch_files_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    return name;
  }

  const fs::path folder_ = new_folder();
};

const std::string kCall = R"("url":"/v1/completions","body":{"prompt":"a"})";

std::string result(const std::string& id, const std::string& error = "null") {
  return fmt::format(R"({{"custom_id":"{}","error":{},"id":"batch-{}","response":{{"body":{{}},)"
                     R"("request_id":"batch-{}","status_code":200}}}})"
                     "\n",
                     id,
                     error,
                     id,
                     id);
}

TEST_F(BatchFiles, NullIsAbsentAndBlankLinesAreSkipped) {
  const auto lines =
      lines_of("\r\n  \t\r\n" + (R"({"custom_id":"a","method":null,)" + kCall) + "}\r\n\n" +
               R"({"custom_id":"b","url":"/v1/completions",)"
               R"("body":{"prompt":["a","b"],"n":3,"stream":null}})");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].number, 3);
  EXPECT_EQ(lines[0].num_requests, 1);
  EXPECT_EQ(lines[1].number, 5);
  EXPECT_EQ(lines[1].custom_id, "b");
  EXPECT_EQ(lines[1].num_requests, 6);
}

TEST_F(BatchFiles, ResponsesAreCheckedAsTheirEndpointDoes) {
  const std::string begin = R"({"custom_id":"a","url":"/v1/responses","body":{"input":"hi")";
  EXPECT_EQ(lines_of(begin + "}}")[0].num_requests, 1);
  const std::string stored = begin + R"(,"previous_response_id":"resp_1"}})";
  EXPECT_TRUE(fails_with([&] { lines_of(stored); }, "line 1: 'previous_response_id': "));
}

TEST_F(BatchFiles, WrongTypesAreSaidWithTheirLine) {
  const auto refused = [&](const std::string& line, const std::string& sentence) {
    const std::string good = R"({"custom_id":"a",)" + kCall + "}\n";
    return fails_with([&] { lines_of(good + line); }, "in.jsonl: line 2: " + sentence);
  };
  EXPECT_TRUE(refused(R"({"custom_id":7,)" + kCall + "}", "'custom_id' must be a string"));
  EXPECT_TRUE(refused("{" + kCall + "}", "'custom_id' is missing"));
  EXPECT_TRUE(
      refused(R"({"custom_id":"b","method":1,)" + kCall + "}", "'method' must be a string"));
  EXPECT_TRUE(
      refused(R"({"custom_id":"b","method":"GET",)" + kCall + "}", "'method' must be POST"));
  EXPECT_TRUE(refused(R"({"custom_id":"b","url":"/v1/completions","body":[]})",
                      "'body' must be an object"));
  EXPECT_TRUE(
      refused(R"({"custom_id":"b","url":"/v1/completions","body":{"prompt":"a","stream":"no"}})",
              "'body.stream' must be true or false"));
  EXPECT_TRUE(refused(R"({"custom_id":"b","custom_id":"c",)" + kCall + "}",
                      "the body has the key \"custom_id\" twice"));
  EXPECT_TRUE(refused(R"({"custom_id":"a",)" + kCall + "}", "custom_id 'a' was used before"));
  EXPECT_TRUE(refused("no JSON", "the body is not valid JSON"));
}

TEST_F(BatchFiles, TheInputIsNeverTheOutput) {
  const std::string input = write("in.jsonl", "x\n");
  const std::string link = path("link");
  const std::string hard = path("hard");
  fs::create_symlink(input, link);
  fs::create_hard_link(input, hard);
  for (const std::string& output : {input, path("./in.jsonl"), link, hard})
    EXPECT_TRUE(fails_with([&] { refuse_same_file(input, output); }, "are one file")) << output;
  refuse_same_file(input, write("other", "x\n"));
  refuse_same_file(input, path("not there"));
  refuse_same_file("/dev/null", "/dev/null");
}

TEST_F(BatchFiles, WithoutResumeOnlyAnEmptyFileIsTaken) {
  const std::string full = write("full", "x");
  EXPECT_TRUE(fails_with([&] { ResultFile(full, {}, false); }, "give --resume"));
  EXPECT_EQ(read(full), "x");
  const std::string empty = write("empty", "");
  ResultFile file(empty, {}, false);
  file.append({.custom_id = "a", .status = 200, .body = "{}"});
  EXPECT_EQ(read(empty), result("a"));
}

TEST_F(BatchFiles, ResumeLeavesWhatIsNoOutputOfABatch) {
  const std::string input_line = R"({"custom_id":"a",)" + kCall + "}";
  for (const std::string& text : {std::string("my thesis"),
                                  std::string("my thesis\n"),
                                  std::string("{}\n"),
                                  std::string("{"),
                                  std::string(R"({"custom_id":")"),
                                  std::string(R"({"custom_id":"b","error":nul)"),
                                  std::string(R"({"custom_id":"a","url":)"),
                                  input_line,
                                  input_line + "\n",
                                  result("a") + "and my notes",
                                  result("a") + "and my notes\n"}) {
    const std::string name = write("out.jsonl", text);
    EXPECT_TRUE(fails_with([&] { ResultFile(name, {"a"}, true); },
                           "is not the output of this batch and is left as it is"))
        << text;
    EXPECT_EQ(read(name), text);
  }
}

TEST_F(BatchFiles, OnlyATornLastLineIsCutOff) {
  const std::string whole = result("a") + result("b");
  EXPECT_EQ(resumed(whole, {"a"}), whole + result("new"));
  EXPECT_EQ(resumed(whole + R"({"custom_id":"c","err)", {"a"}), whole + result("new"));
  EXPECT_EQ(resumed(R"({"custom_id":"line-1","error":null,"id":"ba)", {"line-1", "new"}),
            result("new"));
  EXPECT_EQ(resumed(R"({"custom_id":"line-)", {"line-1", "new"}), result("new"));
  EXPECT_EQ(resumed("", {"line-1"}), result("new"));
}

TEST_F(BatchFiles, FailedLinesThatAreAskedAgainAreDropped) {
  const std::string failed = R"({"message":"no"})";
  const std::string text = result("bad", failed) + result("a") + result("other", failed) +
                           result("bad", failed) + result("b") + R"({"custom_id":"torn)";
  const std::string name = write("out.jsonl", text);
  fs::permissions(name, fs::perms::owner_read | fs::perms::owner_write);
  const std::string link = path("link");
  fs::create_symlink(name, link);
  ResultFile file(link, {"a", "bad"}, true);
  EXPECT_EQ(file.answered(), (std::set<std::string>{"a", "b"}));
  file.append({.custom_id = "bad", .status = 200, .body = "{}"});
  EXPECT_EQ(read(name), result("a") + result("other", failed) + result("b") + result("bad"));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(fs::status(name).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2) << "something was left beside";
}

TEST_F(BatchFiles, OneWriterAtATime) {
  const std::string name = path("out.jsonl");
  {
    ResultFile first(name, {}, false);
    EXPECT_TRUE(fails_with([&] { ResultFile(name, {}, false); }, "another process is writing"));
    EXPECT_TRUE(fails_with([&] { ResultFile(name, {}, true); }, "another process is writing"));
  }
  ResultFile second(name, {}, false);
  // The lock is on the file that has the name, also after a rewrite.
  const std::string other = write("other", result("bad", "{}"));
  ResultFile third(other, {"bad"}, true);
  EXPECT_TRUE(fails_with([&] { ResultFile(other, {"bad"}, true); }, "another process is writing"));
}

TEST_F(BatchFiles, AFailedWriteIsSaidAndNothingFollowsIt) {
  ResultFile file("/dev/full", {}, false);
  const BatchResult line{.custom_id = "a", .status = 200, .body = "{}"};
  EXPECT_TRUE(fails_with([&] { file.append(line); }, "No space left on device"));
  EXPECT_TRUE(fails_with([&] { file.append(line); }, "cannot be written any more"));
  EXPECT_TRUE(fails_with([&] { ResultFile("/dev/full", {}, true); }, "it is no file"));
  EXPECT_TRUE(fails_with([&] { ResultFile(folder_.string(), {}, false); }, "Is a directory"));
}

}  // namespace
}  // namespace outrider
