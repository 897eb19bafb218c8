// See bench_lists.h.
#include "runtime/commands/bench/report/bench_lists.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "runtime/base/error.h"

namespace outrider {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(',', begin);
    words.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return words;
    begin = end + 1;
  }
}

template <typename T>
void parse_list(const std::string& text, T least, T most, std::vector<T>* field) {
  std::vector<T> values;
  for (const std::string& word : split(text)) {
    T value{};
    const char* end = word.data() + word.size();
    const auto [stopped, error] = std::from_chars(word.data(), end, value);
    const bool is_number = error == std::errc{} && stopped == end;
    // Written so that a NaN fails too.
    if (!is_number || !(value >= least && value <= most)) {
      throw Error(fmt::format(
          "'{}' is no list of numbers from {} to {}, as in {},{}", text, least, most, least, most));
    }
    values.push_back(value);
  }
  *field = std::move(values);
}

template <typename T>
Option list_of(std::string key, std::vector<T>* field, T least, T most, std::string help) {
  Option option;
  option.key = std::move(key);
  option.help = std::move(help);
  option.value = fmt::format("{}..{},...", least, most);
  option.set = [=](const std::string& text) { parse_list(text, least, most, field); };
  option.get = [=] { return fmt::format("[{}]", fmt::join(*field, ", ")); };
  return option;
}

}  // namespace

Option integer_list_option(
    std::string key, std::vector<int32_t>* field, int32_t least, int32_t most, std::string help) {
  return list_of(std::move(key), field, least, most, std::move(help));
}

Option number_list_option(
    std::string key, std::vector<double>* field, double least, double most, std::string help) {
  return list_of(std::move(key), field, least, most, std::move(help));
}

Option word_list_option(std::string key, std::vector<std::string>* field, std::string help) {
  Option option;
  option.key = std::move(key);
  option.help = std::move(help);
  option.value = "NAME,...";
  option.set = [field](const std::string& text) {
    field->clear();
    if (!text.empty()) *field = split(text);
  };
  option.get = [field] { return fmt::format("\"{}\"", fmt::join(*field, ",")); };
  return option;
}

}  // namespace outrider
