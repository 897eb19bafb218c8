// See serve_plan.h.
#include "runtime/commands/bench/serve/serve_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/rng.h"
#include "runtime/commands/bench/seeded_draws.h"
#include "runtime/commands/bench/serve/serve_arrivals.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kLengthStream = 3;
constexpr int32_t kDefaultPrompts = 1000;
constexpr int32_t kDefaultInputLen = 1024;
constexpr int32_t kDefaultOutputLen = 128;
constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr int64_t kMaxPromptTokens = 400000000;  // of a whole run, since all bodies lie in memory
constexpr uint64_t kPrefixKey = 0x5eed5eed;

int32_t length_or(int32_t given, int32_t usual, int32_t room) {
  if (given > 0) return given;
  return room > 0 ? std::min(usual, room) : usual;
}

std::vector<RequestShape> random_shapes(const ServeBenchOptions& options,
                                        const ServeSetup& setup,
                                        int32_t max_model_len) {
  double count = options.num_prompts;
  const double rate = setup.loads.front().rate_per_s;
  if (count == 0 && options.duration_s > 0 && std::isfinite(rate))
    count = std::min(1e7, std::ceil(rate * options.duration_s));
  if (count == 0) count = kDefaultPrompts;
  const int32_t input_len =
      length_or(options.random_input_len, kDefaultInputLen, max_model_len / 2);
  const int32_t output_len =
      options.output_len > 0
          ? options.output_len
          : length_or(options.random_output_len, kDefaultOutputLen, max_model_len / 4);
  SeededDraws draws(static_cast<uint64_t>(options.seed), kLengthStream);
  std::vector<RequestShape> shapes(static_cast<size_t>(count));
  for (RequestShape& shape : shapes) {
    shape.row.input_len =
        options.random_prefix_len + random_length(input_len, options.random_range_ratio, &draws);
    shape.row.output_len = random_length(output_len, options.random_range_ratio, &draws);
  }
  return shapes;
}

std::vector<RequestShape> custom_shapes(const ServeBenchOptions& options) {
  const std::vector<FilePrompt> prompts =
      parse_prompt_lines(read_text_file(options.dataset_path, kMaxFileBytes), options.dataset_path);
  const size_t count =
      options.num_prompts > 0 ? static_cast<size_t>(options.num_prompts) : prompts.size();
  std::vector<RequestShape> shapes(count);
  for (size_t i = 0; i < count; ++i) {  // from the beginning again when the file is too short
    const FilePrompt& prompt = prompts[i % prompts.size()];
    shapes[i].text = prompt.text;
    shapes[i].row.output_len = options.output_len > 0  ? options.output_len
                               : prompt.output_len > 0 ? prompt.output_len
                                                       : kDefaultOutputLen;
  }
  return shapes;
}

std::vector<RequestShape> trace_shapes(const ServeBenchOptions& options, const ServeSetup& setup) {
  const std::string text = read_text_file(options.dataset_path, kMaxFileBytes);
  std::vector<TraceRow> rows = setup.dataset == ServeDataset::kAzure
                                   ? parse_azure_trace(text, options.dataset_path)
                                   : parse_mooncake_trace(text, options.dataset_path);
  if (options.num_prompts > 0 && static_cast<size_t>(options.num_prompts) < rows.size())
    rows.resize(static_cast<size_t>(options.num_prompts));
  scale_trace(options.time_scale, options.length_scale, &rows);
  std::vector<RequestShape> shapes;
  const bool own_times = setup.loads.front().rate_per_s == 0;
  for (TraceRow& row : rows) {
    if (own_times && options.duration_s > 0 && row.arrival_s > options.duration_s) break;
    shapes.push_back({std::move(row), {}});
  }
  return shapes;
}

void merge(const std::string& json, Json* body) {
  if (!json.empty()) body->merge_patch(Json::parse(json));
}

std::vector<double> times_of(std::span<const RequestShape> shapes, const RunSpec& run) {
  if (run.load.rate_per_s > 0) {
    return arrival_times({run.load.rate_per_s, run.burstiness, run.seed},
                         static_cast<int32_t>(shapes.size()));
  }
  std::vector<double> times;
  for (const RequestShape& shape : shapes)
    times.push_back(shape.row.arrival_s - shapes.front().row.arrival_s);
  return times;
}

std::vector<PromptPiece> pieces_of(const RequestShape& shape, const RunSpec& run, int32_t index) {
  if (run.random_prefix_len == 0 || !shape.row.hash_ids.empty())
    return trace_pieces(shape.row, run.length_scale, run.salt, index);
  const TraceRow own{.input_len = shape.row.input_len - run.random_prefix_len};
  std::vector<PromptPiece> pieces = trace_pieces(own, 1, run.salt, index);
  pieces.insert(pieces.begin(), {mix_seed(run.salt, kPrefixKey), run.random_prefix_len});
  return pieces;
}

}  // namespace

std::vector<RequestShape> load_shapes(const ServeBenchOptions& options,
                                      const ServeSetup& setup,
                                      int32_t max_model_len) {
  std::vector<RequestShape> shapes;
  switch (setup.dataset) {
    case ServeDataset::kRandom:
      shapes = random_shapes(options, setup, max_model_len);
      break;
    case ServeDataset::kCustom:
      shapes = custom_shapes(options);
      break;
    case ServeDataset::kAzure:
    case ServeDataset::kMooncake:
      shapes = trace_shapes(options, setup);
      break;
  }
  int64_t num_tokens = 0;
  for (const RequestShape& shape : shapes) num_tokens += shape.row.input_len;
  if (num_tokens > kMaxPromptTokens) {
    throw Error(
        fmt::format("the prompts have {} tokens together, more than {}: lower num_prompts or "
                    "length_scale",
                    num_tokens,
                    kMaxPromptTokens));
  }
  return shapes;
}

void check_body_option(const std::string& json, const char* option) {
  if (json.empty()) return;
  if (!Json::parse(json, nullptr, false).is_object())
    throw Error(fmt::format("{}: must be a JSON object", option));
}

std::string request_body(const BodySpec& spec, const ServePrompt& prompt, int32_t output_len) {
  Json body = {{"model", spec.model},
               {"temperature", spec.temperature},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (spec.continuous_usage) body["stream_options"]["continuous_usage_stats"] = true;
  if (spec.ignore_eos) body["ignore_eos"] = true;
  body[spec.chat ? "max_completion_tokens" : "max_tokens"] = output_len;
  if (spec.chat) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.text}}});
  } else if (!prompt.ids.empty()) {
    body["prompt"] = prompt.ids;
  } else {
    body["prompt"] = prompt.text;
  }
  merge(spec.extra_body, &body);
  merge(spec.variant_body, &body);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<PlannedRequest> plan_run(std::span<const RequestShape> shapes,
                                     const RunSpec& run,
                                     const BodySpec& body,
                                     const PromptMaker& prompts) {
  const std::vector<double> times = times_of(shapes, run);
  std::vector<PlannedRequest> requests;
  for (size_t i = 0; i < shapes.size(); ++i) {
    ServePrompt prompt;
    prompt.text = shapes[i].text;
    if (prompt.text.empty())
      prompt = prompts.make(pieces_of(shapes[i], run, static_cast<int32_t>(i)));
    const int32_t output_len = shapes[i].row.output_len;
    requests.push_back(
        {times[i], request_body(body, prompt, output_len), prompt.num_tokens, output_len});
  }
  return requests;
}

}  // namespace outrider
