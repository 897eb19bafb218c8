// See options.h.
#include "runtime/base/settings/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "runtime/base/error.h"

namespace outrider {
namespace {

template <typename T>
T parse_number(const std::string& text, const char* what) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stopped != end || !(value == value)) {
    throw Error(fmt::format("'{}' is not {}", text, what));
  }
  return value;
}

template <typename T>
void check_range(T value, T least, T most) {
  if (value < least || value > most)
    throw Error(fmt::format("{} is not between {} and {}", value, least, most));
}

// vLLM's suffixes: k and K are 1000 and 1024 there; here all are powers of 1024, as memory sizes
// are meant.
int64_t parse_size(const std::string& text) {
  std::string digits = text;
  int shift = 0;
  if (!digits.empty()) {
    const std::string suffixes = "kKmMgG";
    const auto place = suffixes.find(digits.back());
    if (place != std::string::npos) {
      shift = 10 * (static_cast<int>(place) / 2 + 1);
      digits.pop_back();
    }
  }
  const auto value = parse_number<int64_t>(digits, "a size such as 512M or 4G");
  if (value < 0 || value > (INT64_MAX >> shift))
    throw Error(fmt::format("'{}' is not a possible size", text));
  return value << shift;
}

bool parse_bool(const std::string& text) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return false;
  throw Error(fmt::format("'{}' is not true or false", text));
}

std::vector<std::string> keys_of(const std::vector<const Option*>& options) {
  std::vector<std::string> keys;
  for (const Option* option : options) keys.push_back(option->key);
  return keys;
}

// One entry, or several as vLLM's options take them: '["a", "b"]'.
std::vector<std::string> list_entries(const std::string& text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return {text};
  constexpr std::string_view kAround = " \t\"'";
  std::vector<std::string> entries;
  std::string_view rest = std::string_view(text).substr(1, text.size() - 2);
  while (true) {
    const size_t end = rest.find(',');
    std::string_view entry = rest.substr(0, end);
    entry.remove_prefix(std::min(entry.find_first_not_of(kAround), entry.size()));
    entry = entry.substr(0, entry.find_last_not_of(kAround) + 1);
    entries.emplace_back(entry);
    if (end == std::string_view::npos) return entries;
    rest.remove_prefix(end + 1);
  }
}

std::string yaml_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\x{:02x}", byte);
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string normalized(std::string key) {
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

const Option* find_flag(const std::string& flag, const std::vector<const Option*>& options) {
  const std::string key = flag.starts_with("--") ? normalized(flag.substr(2)) : "";
  for (const Option* option : options) {
    if (!key.empty() && (option->key == key || option->old_key == key)) return option;
    if (std::find(option->aliases.begin(), option->aliases.end(), flag) != option->aliases.end())
      return option;
  }
  return nullptr;
}

// "--no-x" for a flag "--x", as vLLM spells it; null for anything else.
const Option* find_negated_flag(const std::string& flag,
                                const std::vector<const Option*>& options) {
  if (!flag.starts_with("--no-") && !flag.starts_with("--no_")) return nullptr;
  const Option* option = find_flag("--" + flag.substr(5), options);
  return option != nullptr && option->value.empty() ? option : nullptr;
}

[[noreturn]] void throw_unknown_flag(const std::string& flag,
                                     const std::vector<const Option*>& options) {
  const std::string key = flag.starts_with("--") ? normalized(flag.substr(2)) : flag;
  std::string near = nearest_name(key, keys_of(options));
  std::replace(near.begin(), near.end(), '_', '-');
  throw Error(fmt::format(
      "unknown option {}{}", flag, near.empty() ? "" : fmt::format("; did you mean --{}?", near)));
}

bool is_choice_of(const Option& option, const std::string& word) {
  return std::find(option.choices.begin(), option.choices.end(), word) != option.choices.end();
}

Option base_option(std::string key, std::string help) {
  Option option;
  option.key = std::move(key);
  option.help = std::move(help);
  return option;
}

// words: what a text must be, for the sentence that refuses another one.
template <typename T>
Option number_row(std::string key, T* field, T least, T most, std::string help, const char* words) {
  Option option = base_option(std::move(key), std::move(help));
  const bool is_open = most >= std::numeric_limits<T>::max();
  option.value = is_open ? fmt::format("{}..", least) : fmt::format("{}..{}", least, most);
  option.set = [=](const std::string& text) {
    const auto value = parse_number<T>(text, words);
    check_range(value, least, most);
    *field = value;
  };
  option.get = [=] {
    return *field < least || *field > most ? std::string() : fmt::format("{}", *field);
  };
  return option;
}

}  // namespace

Option text_option(std::string key, std::string* field, std::string help) {
  Option option = base_option(std::move(key), std::move(help));
  option.set = [field](const std::string& text) { *field = text; };
  option.get = [field] { return yaml_quoted(*field); };
  return option;
}

Option path_option(std::string key, std::string* field, std::string help) {
  Option option = text_option(std::move(key), field, std::move(help));
  option.value = "PATH";
  option.set = [field](const std::string& text) {
    *field = text;
    if (text != "~" && !text.starts_with("~/")) return;
    const char* home = std::getenv("HOME");
    if (home == nullptr) throw Error(fmt::format("'{}' needs HOME, which is not set", text));
    *field = home + text.substr(1);
  };
  return option;
}

Option integer_option(
    std::string key, int32_t* field, int32_t least, int32_t most, std::string help) {
  return number_row(std::move(key), field, least, most, std::move(help), "a whole number");
}

Option secret_option(Option option) {
  option.is_secret = true;
  return option;
}

Option or_word(Option option, std::string word, int32_t* field, int32_t value) {
  option.value = word + " or " + option.value;
  option.set = [=, number = option.set](const std::string& text) {
    if (text != word) return number(text);
    *field = value;
  };
  option.get = [=, number = option.get] { return *field == value ? word : number(); };
  return option;
}

Option with_words(Option option, std::vector<std::pair<std::string, std::string>> words) {
  option.set = [words = std::move(words), value = option.set](const std::string& text) {
    for (const auto& [word, meant] : words) {
      if (text == word) return value(meant);
    }
    value(text);
  };
  return option;
}

Option size_option(std::string key, int64_t* field, std::string help) {
  Option option = base_option(std::move(key), std::move(help));
  option.value = "BYTES";
  option.set = [field](const std::string& text) { *field = parse_size(text); };
  option.get = [field] { return std::to_string(*field); };
  return option;
}

Option number_option(std::string key, double* field, double least, double most, std::string help) {
  return number_row(std::move(key), field, least, most, std::move(help), "a number");
}

Option flag_option(std::string key, bool* field, std::string help) {
  Option option = base_option(std::move(key), std::move(help));
  option.value.clear();
  option.set = [field](const std::string& text) { *field = parse_bool(text); };
  option.get = [field] { return std::string(*field ? "true" : "false"); };
  return option;
}

Option choice_option(std::string key,
                     std::string* field,
                     std::vector<std::string> choices,
                     std::string help) {
  Option option = base_option(std::move(key), std::move(help));
  option.value = "NAME";
  option.choices = choices;
  option.set = [field, choices](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      throw Error(fmt::format("'{}' is not one of {}", text, fmt::join(choices, ", ")));
    }
    *field = text;
  };
  option.get = [field] { return *field; };
  return option;
}

Option list_option(std::string key, std::vector<std::string>* field, std::string help) {
  Option option = base_option(std::move(key), std::move(help));
  option.is_list = true;
  // An empty text is never meant: it would be a key that everybody has.
  option.set = [field](const std::string& text) {
    for (std::string& entry : list_entries(text)) {
      if (entry.empty()) throw Error("an entry is empty");
      field->push_back(std::move(entry));
    }
  };
  option.clear = [field] { field->clear(); };
  option.get = [field] {
    std::string list = "[";
    for (const std::string& text : *field)
      list += (list.size() > 1 ? ", " : "") + yaml_quoted(text);
    return list + "]";
  };
  return option;
}

Option with_aliases(Option option, std::vector<std::string> aliases) {
  option.aliases = std::move(aliases);
  return option;
}

Option with_old_key(Option option, std::string old_key) {
  option.old_key = std::move(old_key);
  return option;
}

ParsedArguments parse_arguments(const std::vector<std::string>& arguments,
                                const std::vector<const Option*>& options) {
  ParsedArguments parsed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      parsed.positional.insert(parsed.positional.end(),
                               arguments.begin() + static_cast<ptrdiff_t>(i) + 1,
                               arguments.end());
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') {
      parsed.positional.push_back(argument);
      continue;
    }
    const size_t equals = argument.starts_with("--") ? argument.find('=') : std::string::npos;
    const std::string flag = argument.substr(0, equals);
    const Option* option = find_flag(flag, options);
    const Option* negated =
        equals == std::string::npos ? find_negated_flag(flag, options) : nullptr;
    if (option == nullptr && negated == nullptr) throw_unknown_flag(flag, options);
    if (option == nullptr) {
      parsed.values.push_back({negated->key, "false", "command line"});
      continue;
    }
    GivenValue given{option->key, "true", "command line"};
    if (equals != std::string::npos) {
      given.value = argument.substr(equals + 1);
    } else if (option->value.empty()) {
      if (i + 1 < arguments.size() && is_choice_of(*option, arguments[i + 1]))
        given.value = arguments[++i];
    } else {
      if (i + 1 == arguments.size() || find_flag(arguments[i + 1], options) != nullptr)
        throw Error(fmt::format("option {} needs a value", flag));
      given.value = arguments[++i];
    }
    parsed.values.push_back(std::move(given));
  }
  return parsed;
}

void refuse_surplus_words(const std::vector<std::string>& words, size_t most) {
  if (words.size() > most) throw Error(fmt::format("unexpected argument '{}'", words[most]));
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 100;  // nobody mistypes so much
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    if (name.size() > kLongest) break;
    const auto [shorter, longer] = std::minmax({name.size(), candidate.size()});
    if (longer - shorter >= best_distance) continue;  // no distance is less than that
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

void apply_value(const GivenValue& given, const std::vector<const Option*>& options) {
  for (const Option* option : options) {
    if (option->key != given.key) continue;
    try {
      option->set(given.value);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {} (from {})", given.key, error.what(), given.origin));
    }
    return;
  }
  const std::string near = nearest_name(given.key, keys_of(options));
  throw Error(fmt::format("unknown option '{}'{} (from {})",
                          given.key,
                          near.empty() ? "" : fmt::format(", did you mean '{}'?", near),
                          given.origin));
}

std::vector<const Option*> option_rows(const std::vector<Option>& options) {
  std::vector<const Option*> rows;
  rows.reserve(options.size());
  for (const Option& option : options) rows.push_back(&option);
  return rows;
}

std::vector<OptionHelp> help_of(const std::vector<const Option*>& options) {
  std::vector<OptionHelp> rows;
  for (const Option* option : options) {
    std::string name = option->key;
    std::replace(name.begin(), name.end(), '_', '-');
    OptionHelp& row = rows.emplace_back(OptionHelp{.group = option->group,
                                                   .names = {"--" + name},
                                                   .value = option->value,
                                                   .choices = option->choices,
                                                   .text = option->help});
    std::string value = option->get();
    if (value == "[]" || value == "false") value.clear();
    if (value == "true") row.names.push_back("--no-" + name);
    if (value.starts_with('"')) value = value.substr(1, value.size() - 2);
    row.default_value = std::move(value);
    row.names.insert(row.names.end(), option->aliases.begin(), option->aliases.end());
  }
  return rows;
}

bool asks_for_help(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& one) {
    return one == "--help" || one == "-h";
  });
}

}  // namespace outrider
