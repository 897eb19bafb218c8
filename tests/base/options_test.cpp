// The table of options: what each type takes and refuses, flags in all spellings, and the nearest
// name for an unknown one.
#include "runtime/base/settings/options.h"

#include <gtest/gtest.h>

#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

using Arguments = std::vector<std::string>;

TEST(Options, WholeNumbers) {
  int32_t value = 7;
  const Option option = integer_option("n", &value, -5, 100, "");
  option.set("100");
  EXPECT_EQ(value, 100);
  option.set("-5");
  EXPECT_EQ(value, -5);
  EXPECT_EQ(option.get(), "-5");
  EXPECT_TRUE(fails_with([&] { option.set("101"); }, "101 is not between -5 and 100"));
  EXPECT_TRUE(fails_with([&] { option.set("-6"); }, "is not between"));
  for (const char* bad : {"", " 1", "1 ", "+1", "1.0", "1e1", "0x1", "one", "99999999999999999999"})
    EXPECT_TRUE(fails_with([&] { option.set(bad); }, "is not a whole number")) << bad;
  EXPECT_EQ(value, -5) << "a refused value must change nothing";
}

TEST(Options, SizesHaveBinarySuffixes) {
  int64_t bytes = 0;
  const Option option = size_option("s", &bytes, "");
  const std::vector<std::pair<const char*, int64_t>> good = {
      {"0", 0},
      {"17", 17},
      {"3k", 3072},
      {"3K", 3072},
      {"512M", int64_t{512} << 20},
      {"4g", int64_t{4} << 30},
      {"4G", int64_t{4} << 30},
      {"8589934591G", INT64_MAX >> 30 << 30}};
  for (const auto& [text, want] : good) {
    option.set(text);
    EXPECT_EQ(bytes, want) << text;
  }
  EXPECT_EQ(option.get(), std::to_string(INT64_MAX >> 30 << 30));
  EXPECT_TRUE(fails_with([&] { option.set("8589934592G"); }, "not a possible size"));
  EXPECT_TRUE(fails_with([&] { option.set("-1"); }, "not a possible size"));
  for (const char* bad : {"", "G", "4GiB", "1.5G", "4 G", "kk"})
    EXPECT_TRUE(fails_with([&] { option.set(bad); }, "is not a size such as")) << bad;
}

TEST(Options, Numbers) {
  double value = 0;
  const Option option = number_option("x", &value, 0, 10, "");
  option.set("2.5");
  EXPECT_EQ(value, 2.5);
  EXPECT_EQ(option.get(), "2.5");
  option.set("1e1");
  EXPECT_EQ(value, 10);
  for (const char* bad : {"nan", "", "x", "1,5", "2.5s"})
    EXPECT_TRUE(fails_with([&] { option.set(bad); }, "is not a number")) << bad;
  for (const char* bad : {"inf", "-inf", "-0.1", "10.1"})
    EXPECT_TRUE(fails_with([&] { option.set(bad); }, "is not between 0 and 10")) << bad;
}

TEST(Options, FlagsAndChoices) {
  bool flag = false;
  const Option on_off = flag_option("f", &flag, "");
  for (const char* yes : {"true", "1", "yes", "on"}) {
    flag = false;
    on_off.set(yes);
    EXPECT_TRUE(flag) << yes;
  }
  for (const char* no : {"false", "0", "no", "off"}) {
    flag = true;
    on_off.set(no);
    EXPECT_FALSE(flag) << no;
  }
  EXPECT_EQ(on_off.get(), "false");
  EXPECT_TRUE(fails_with([&] { on_off.set("True?"); }, "'True?' is not true or false"));

  std::string choice = "a";
  const Option one_of = choice_option("c", &choice, {"a", "b"}, "which");
  one_of.set("b");
  EXPECT_EQ(choice, "b");
  EXPECT_EQ(one_of.choices, (Arguments{"a", "b"}));
  EXPECT_TRUE(fails_with([&] { one_of.set("B"); }, "'B' is not one of a, b"));
}

TEST(Options, ListsGrowAndRefuseEmptyEntries) {
  std::vector<std::string> keys;
  const Option list = list_option("k", &keys, "");
  list.set("one");
  list.set("t\"wo");
  EXPECT_EQ(keys, (Arguments{"one", "t\"wo"}));
  EXPECT_EQ(list.get(), R"(["one", "t\"wo"])");
  EXPECT_TRUE(fails_with([&] { list.set(""); }, "empty"));
  list.clear();
  EXPECT_EQ(list.get(), "[]");
}

TEST(Options, TextIsQuotedForYaml) {
  std::string text;
  const Option option = text_option("t", &text, "");
  option.set("a\"b\\c\nd\x7f");
  EXPECT_EQ(option.get(), R"("a\"b\\c\x0ad\x7f")");
}

class CommandLineTest : public ::testing::Test {
 protected:
  ParsedArguments parse(const Arguments& arguments) const {
    return parse_arguments(arguments, {&model_, &port_, &resume_});
  }
  static std::string text(const ParsedArguments& parsed) {
    std::string all;
    for (const GivenValue& given : parsed.values) all += given.key + "=" + given.value + ";";
    for (const std::string& word : parsed.positional) all += word + ";";
    return all;
  }

  std::string model_name_;
  int32_t port_number_ = 0;
  bool does_resume_ = false;
  Option model_ =
      with_aliases(text_option("group.model_name", &model_name_, "the model"), {"-m", "--alias"});
  Option port_ = integer_option("port", &port_number_, 0, 65535, "where");
  Option resume_ = flag_option("resume", &does_resume_, "go on");
};

TEST_F(CommandLineTest, AllSpellingsOfAFlag) {
  for (const Arguments& given : {Arguments{"--group.model-name", "x"},
                                 {"--group.model_name", "x"},
                                 {"--group.model-name=x"},
                                 {"-m", "x"},
                                 {"--alias", "x"},
                                 {"--alias=x"}}) {
    EXPECT_EQ(text(parse(given)), "group.model_name=x;") << given[0];
  }
  EXPECT_EQ(text(parse({"--group.model-name=a=b"})), "group.model_name=a=b;");
  EXPECT_EQ(text(parse({"--group.model-name="})), "group.model_name=;");
}

TEST_F(CommandLineTest, FlagsPositionalsAndTheEndOfOptions) {
  EXPECT_EQ(text(parse({"in", "--resume", "out", "-", "--", "--port", "-m"})),
            "resume=true;in;out;-;--port;-m;");
  EXPECT_EQ(text(parse({"--resume=false"})), "resume=false;");
  EXPECT_EQ(text(parse({"--no-resume", "x"})), "resume=false;x;");
  EXPECT_TRUE(fails_with([&] { parse({"--no-resume=true"}); }, "unknown option --no-resume"));
  EXPECT_TRUE(fails_with([&] { parse({"--no-port"}); }, "unknown option --no-port"));
  EXPECT_EQ(parse({"--port", "1"}).values[0].origin, "command line");
  EXPECT_EQ(text(parse({"--port", "-1"})), "port=-1;") << "a number is no flag";
}

TEST_F(CommandLineTest, AMissingValueIsNotTakenFromTheNextFlag) {
  EXPECT_TRUE(fails_with([&] { parse({"--port"}); }, "option --port needs a value"));
  EXPECT_TRUE(fails_with([&] { parse({"-m", "--port", "1"}); }, "option -m needs a value"));
  EXPECT_EQ(text(parse({"--alias=--port"})), "group.model_name=--port;");
}

TEST_F(CommandLineTest, UnknownFlagsNameTheNearest) {
  EXPECT_TRUE(fails_with(
      [&] {
        parse({"--prot", "1"});
      },
      "unknown option --prot; did you mean --port?"));
  EXPECT_TRUE(fails_with([&] { parse({"--group.model-nam=1"}); }, "mean --group.model-name?"));
  EXPECT_EQ(error_of([&] { parse({"--temperature=1"}); }), "unknown option --temperature");
  EXPECT_TRUE(fails_with([&] { parse({"-z"}); }, "unknown option -z"));
  EXPECT_TRUE(fails_with([&] { parse({"-port", "1"}); }, "did you mean --port?"));
}

TEST_F(CommandLineTest, ApplyingNamesKeyAndOrigin) {
  const std::vector<const Option*> options = {&model_, &port_, &resume_};
  apply_value({"port", "80", "here"}, options);
  EXPECT_EQ(port_number_, 80);
  EXPECT_EQ(error_of([&] {
              apply_value({"port", "80x", "a.yaml:3"}, options);
            }),
            "port: '80x' is not a whole number (from a.yaml:3)");
  EXPECT_EQ(error_of([&] {
              apply_value({"porte", "80", "a.yaml:3"}, options);
            }),
            "unknown option 'porte', did you mean 'port'? (from a.yaml:3)");
  EXPECT_EQ(error_of([&] {
              apply_value({"zzzzzzzz", "80", "X"}, options);
            }),
            "unknown option 'zzzzzzzz' (from X)");
}

TEST_F(CommandLineTest, HelpRowsHaveNamesValuesAndDefaults) {
  model_.group = "Model";
  does_resume_ = true;
  port_number_ = 8000;
  const std::vector<OptionHelp> rows = help_of({&model_, &port_, &resume_});
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows[0].group, "Model");
  EXPECT_EQ(rows[0].names, (Arguments{"--group.model-name", "-m", "--alias"}));
  EXPECT_EQ(rows[0].value, "TEXT");
  EXPECT_EQ(rows[0].default_value, "");
  EXPECT_EQ(rows[0].text, "the model");
  EXPECT_EQ(rows[1].value, "0..65535");
  EXPECT_EQ(rows[1].default_value, "8000");
  EXPECT_EQ(rows[2].names, (Arguments{"--resume", "--no-resume"}));
  EXPECT_EQ(rows[2].value, "") << "a flag takes none";
  model_name_ = "a \"b\"";
  does_resume_ = false;
  const std::vector<OptionHelp> again = help_of({&model_, &resume_});
  EXPECT_EQ(again[0].default_value, "a \\\"b\\\"");
  EXPECT_EQ(again[1].names, (Arguments{"--resume"}));
}

TEST(Options, HelpKnowsOpenEndsWordsAndWhatIsNotGiven) {
  int32_t count = 0;
  double share = -1;
  const Option open = integer_option("count", &count, 1, INT32_MAX, "");
  const Option closed = number_option("share", &share, 0.5, 1, "");
  const Option with_word = or_word(integer_option("n", &count, 1, 64, ""), "auto", &count, 0);
  const std::vector<OptionHelp> rows = help_of({&open, &closed, &with_word});
  EXPECT_EQ(rows[0].value, "1..");
  EXPECT_EQ(rows[0].default_value, "") << "out of its range: not given";
  EXPECT_EQ(rows[1].value, "0.5..1");
  EXPECT_EQ(rows[1].default_value, "");
  EXPECT_EQ(rows[2].value, "auto or 1..64");
  EXPECT_EQ(rows[2].default_value, "auto");
}

}  // namespace
}  // namespace outrider
