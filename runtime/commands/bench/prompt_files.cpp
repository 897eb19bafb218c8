// See prompt_files.h.
#include "runtime/commands/bench/prompt_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/files/json_depth.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxTokens = 16 << 20;  // of one prompt or answer
constexpr double kMaxSeconds = 100.0 * 366 * 86400;

// Calls `take` with every line that is not empty and with "origin line N".
void for_each_line(std::string_view text,
                   const std::string& origin,
                   const std::function<void(std::string_view, const std::string& place)>& take) {
  for (size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) take(line, fmt::format("{} line {}", origin, number));
  }
}

Json object_of(std::string_view line, const std::string& place) {
  if (json_nests_deeper_than(line, kMaxJsonDepth))
    throw Error(fmt::format("{} is nested deeper than {}", place, kMaxJsonDepth));
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) throw Error(place + ": not a JSON object");
  return json;
}

int32_t length_of(const Json& json, const char* name, uint64_t least, const std::string& place) {
  const Json length = json.value(name, Json());
  if (length.is_number_unsigned() && length.get<uint64_t>() >= least &&
      length.get<uint64_t>() <= kMaxTokens) {
    return length.get<int32_t>();
  }
  throw Error(fmt::format("{}: {} must be {} to {}", place, name, least, kMaxTokens));
}

RequestShape shape_of_json(std::string_view line, const std::string& place) {
  const Json json = object_of(line, place);
  const Json turns = json.value("turns", Json());
  const Json first = turns.is_array() && !turns.empty() ? turns.front() : Json();
  const Json prompt = json.value("prompt", Json());
  const Json& text = prompt.is_string() ? prompt : first;
  if (!text.is_string()) throw Error(place + " has neither \"prompt\" nor \"turns\"");
  if (text.get_ref<const std::string&>().empty()) throw Error(place + ": the prompt is empty");
  const char* name = json.contains("output_tokens") ? "output_tokens" : "max_tokens";
  const bool has_length = json.contains(name) && !json[name].is_null();
  return {.output_len = has_length ? length_of(json, name, 1, place) : 0,
          .text = text.get<std::string>()};
}

}  // namespace

std::vector<RequestShape> parse_prompt_lines(std::string_view text, const std::string& origin) {
  std::vector<RequestShape> shapes;
  for_each_line(text, origin, [&](std::string_view line, const std::string& place) {
    shapes.push_back(line.front() == '{' ? shape_of_json(line, place)
                                         : RequestShape{.text = std::string(line)});
  });
  if (shapes.empty()) throw Error(fmt::format("{} has no prompts", origin));
  return shapes;
}

std::vector<RequestShape> parse_timed_trace(std::string_view text, const std::string& origin) {
  std::vector<RequestShape> rows;
  double first_s = 0;
  for_each_line(text, origin, [&](std::string_view line, const std::string& place) {
    const Json row = object_of(line, place);
    const Json time = row.value("timestamp", Json());
    if (!time.is_number()) throw Error(place + ": timestamp must be a number of milliseconds");
    const double time_s = time.get<double>() / 1e3;
    if (rows.empty()) first_s = time_s;
    const double arrival_s = time_s - first_s;
    if (!rows.empty() && !(arrival_s >= rows.back().arrival_s))
      throw Error(place + ": earlier than the line before");
    if (!(arrival_s <= kMaxSeconds)) throw Error(place + ": the time is out of range");
    rows.push_back({.arrival_s = arrival_s,
                    .input_len = length_of(row, "input_length", 1, place),
                    .output_len = std::max(1, length_of(row, "output_length", 0, place)),
                    .text = {}});
  });
  if (rows.empty()) throw Error(fmt::format("{} has no requests", origin));
  return rows;
}

}  // namespace outrider
