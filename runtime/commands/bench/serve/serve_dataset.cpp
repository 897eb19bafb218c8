// See serve_dataset.h.
#include "runtime/commands/bench/serve/serve_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/files/json_depth.h"
#include "runtime/commands/bench/seeded_draws.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kLengthStream = 3;
constexpr uint64_t kMaxTokens = 16 << 20;  // of one prompt or answer
constexpr double kMaxSeconds = 100.0 * 366 * 86400;
constexpr int32_t kDefaultPrompts = 1000;
constexpr int32_t kDefaultInputLen = 1024;
constexpr int32_t kDefaultOutputLen = 128;
constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr int64_t kMaxPromptTokens = 400000000;  // of a whole run, since all bodies lie in memory

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

int32_t length_or(int32_t given, int32_t usual, int32_t room) {
  if (given > 0) return given;
  return room > 0 ? std::min(usual, room) : usual;
}

std::vector<RequestShape> random_shapes(const ServeBenchOptions& options, int32_t max_model_len) {
  const int32_t input_len =
      length_or(options.random_input_len, kDefaultInputLen, max_model_len / 2);
  const int32_t given = options.output_len > 0 ? options.output_len : options.random_output_len;
  const int32_t output_len = length_or(given, kDefaultOutputLen, max_model_len / 4);
  SeededDraws draws(static_cast<uint64_t>(options.seed), kLengthStream);
  const int32_t count = options.num_prompts > 0 ? options.num_prompts : kDefaultPrompts;
  std::vector<RequestShape> shapes(static_cast<size_t>(count));
  for (RequestShape& shape : shapes) {
    shape.input_len =
        options.random_prefix_len + random_length(input_len, options.random_range_ratio, &draws);
    shape.output_len = random_length(output_len, options.random_range_ratio, &draws);
  }
  return shapes;
}

std::vector<RequestShape> custom_shapes(const ServeBenchOptions& options, const std::string& text) {
  const std::vector<RequestShape> lines = parse_prompt_lines(text, options.dataset_path);
  std::vector<RequestShape> shapes(
      options.num_prompts > 0 ? static_cast<size_t>(options.num_prompts) : lines.size());
  for (size_t i = 0; i < shapes.size(); ++i) {  // from the beginning again when the file is short
    shapes[i] = lines[i % lines.size()];
    int32_t& output_len = shapes[i].output_len;
    output_len = options.output_len > 0 ? options.output_len
                 : output_len > 0       ? output_len
                                        : kDefaultOutputLen;
  }
  return shapes;
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

std::vector<RequestShape> load_shapes(const ServeBenchOptions& options, int32_t max_model_len) {
  std::vector<RequestShape> shapes;
  if (options.dataset == "random") {
    shapes = random_shapes(options, max_model_len);
  } else if (options.dataset == "custom") {
    shapes = custom_shapes(options, read_text_file(options.dataset_path, kMaxFileBytes));
  } else {
    const std::string text = read_text_file(options.dataset_path, kMaxFileBytes);
    shapes = parse_timed_trace(text, options.dataset_path);
    if (options.num_prompts > 0)
      shapes.resize(std::min(shapes.size(), static_cast<size_t>(options.num_prompts)));
  }
  int64_t num_tokens = 0;
  for (const RequestShape& shape : shapes) num_tokens += shape.input_len;
  if (num_tokens <= kMaxPromptTokens) return shapes;
  throw Error(fmt::format("the prompts have {} tokens together, more than {}: lower num_prompts",
                          num_tokens,
                          kMaxPromptTokens));
}

}  // namespace outrider
