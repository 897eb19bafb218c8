// A table of options as data: one row gives the command-line flag, the environment variable, the
// YAML key, the help line and the type. Used for the run's configuration and for each command's own
// flags.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {

struct Option {
  std::string key;                   // snake_case, dots for groups: speculative_config.model
  std::vector<std::string> aliases;  // further flags as typed: "-m", "--ctx-size"
  std::string old_key = {};          // of an earlier version, understood wherever the key is
  std::string help;                  // one line, with its unit
  std::string group;                 // the heading it stands under in help; may be empty
  std::string value = "TEXT";        // its type as help shows it: "PATH", "1..64"; empty: a flag,
                                     // which needs no value on the command line
  std::vector<std::string> choices;  // all that it takes; empty: whatever is of its type;
                                     // of a flag: what may follow it
  bool is_list = false;              // may be given several times
  bool is_secret = false;            // shown to nobody
  std::function<void(const std::string&)> set;  // throws Error that says what a good value is
  std::function<std::string()> get;             // as YAML text; empty: not given
  std::function<void()> clear;                  // lists only: forget what earlier sources gave
};

// Rows for plain fields. The field must outlive the option; out-of-range and unparsable values
// throw Error. A number that begins out of its range stands for "not given".
Option text_option(std::string key, std::string* field, std::string help);
// A file or folder: a ~ at its start is the home folder, as in a shell, which expands it only at
// the start of a word.
Option path_option(std::string key, std::string* field, std::string help);
Option integer_option(
    std::string key, int32_t* field, int32_t least, int32_t most, std::string help);
Option secret_option(Option option);
// The row also takes `word`, which stands for this value of its field.
Option or_word(Option option, std::string word, int32_t* field, int32_t value);
// The row also takes these words, each for the value beside it: other programs' names.
Option with_words(Option option, std::vector<std::pair<std::string, std::string>> words);
Option size_option(std::string key,
                   int64_t* field,
                   std::string help);  // bytes; k, M, G suffixes of 1024
Option number_option(std::string key, double* field, double least, double most, std::string help);
Option flag_option(std::string key, bool* field, std::string help);
Option choice_option(std::string key,
                     std::string* field,
                     std::vector<std::string> choices,
                     std::string help);
Option list_option(std::string key, std::vector<std::string>* field, std::string help);
Option with_aliases(Option option, std::vector<std::string> aliases);
Option with_old_key(Option option, std::string old_key);

// A value as typed by the user, before it is applied.
struct GivenValue {
  std::string key;
  std::string value;
  std::string origin;  // "command line", "OUTRIDER_PORT", "file.yaml:3"
};

// Splits arguments into values of known options and the rest. "--a-b c", "--a-b=c" and "--a_b c"
// are the same; "--" ends options. Throws Error for an unknown flag, naming the nearest known one,
// and for a flag whose value is missing (the next argument is a known flag).
struct ParsedArguments {
  std::vector<GivenValue> values;
  std::vector<std::string> positional;
};
ParsedArguments parse_arguments(const std::vector<std::string>& arguments,
                                const std::vector<const Option*>& options);

// Throws Error naming the first of the words that is one too many.
void refuse_surplus_words(const std::vector<std::string>& words, size_t most);

// The name nearest to this one (edit distance), or empty when none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

// Applies a value; throws Error "port: ... (from command line)".
void apply_value(const GivenValue& given, const std::vector<const Option*>& options);

// Pointers to all rows, as the functions above take them.
std::vector<const Option*> option_rows(const std::vector<Option>& options);

// An option as help shows it, on whatever page.
struct OptionHelp {
  std::string group = {};
  std::vector<std::string> names;  // as typed, the full one first: "--port", "-p"
  std::string value = {};          // as Option::value
  std::vector<std::string> choices = {};
  std::string default_value = {};  // empty: none
  std::string text;
};
// What the rows' fields hold now counts as the default.
std::vector<OptionHelp> help_of(const std::vector<const Option*>& options);

// Thrown in place of an answer when somebody asks what the options are.
struct HelpAsked {
  std::vector<OptionHelp> own;     // of the command
  std::vector<OptionHelp> common;  // of all commands
};
// Whether --help or -h is among the arguments.
bool asks_for_help(const std::vector<std::string>& arguments);

}  // namespace outrider
