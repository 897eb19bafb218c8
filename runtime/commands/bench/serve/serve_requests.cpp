// See serve_requests.h.
#include "runtime/commands/bench/serve/serve_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/seeded_draws.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kArrivalStream = 1;
constexpr uint32_t kWordStream = 2;
constexpr uint32_t kLengthStream = 3;
constexpr size_t kMinWords = 16;
constexpr size_t kMaxWords = 4096;
constexpr uint64_t kMaxOutputTokens = 16 << 20;
constexpr int kFittingRounds = 6;
constexpr int32_t kDefaultPrompts = 1000;
constexpr int32_t kDefaultInputLen = 1024;
constexpr int32_t kDefaultOutputLen = 128;
constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr int64_t kMaxPromptTokens = 400000000;  // of a whole run, since all bodies lie in memory
constexpr uint64_t kPrefixKey = 0x5eed5eed;

constexpr const char* kCommonWords =
    "the of and to in that was he it his with is for as had you not be her on at by which have or "
    "from this him but all she they were my are me one their so an said them we who would been "
    "will no when there if more out up into do any your what has man could other than our some "
    "very time upon about may its only now like little then can should made did us such great "
    "before must two these see know over much down after first good men own never most old day "
    "where those came himself way work life without go make well through being long say might how "
    "am too even again many back here think every";

bool is_word(std::string_view text) {
  return text.size() >= 3 && text.front() == ' ' &&
         std::all_of(text.begin() + 1, text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

// Words that stay one token between other words.
std::vector<std::string> words_of(const Tokenizer& tokenizer) {
  std::vector<std::string> words;
  for (int32_t id = 0; id < tokenizer.vocab_size() && words.size() < kMaxWords; ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string word = tokenizer.token_bytes(id);
    if (!is_word(word)) continue;
    const std::vector<int32_t> twice = tokenizer.encode(
        "a" + word + word, {.add_special_tokens = false, .parse_special_tokens = false});
    if (twice.size() >= 2 && twice.back() == id && twice[twice.size() - 2] == id)
      words.push_back(word);
  }
  return words;
}

int32_t output_len_of(const Json& line, const std::string& place) {
  for (const char* name : {"output_tokens", "max_tokens"}) {
    const auto found = line.find(name);
    if (found == line.end() || found->is_null()) continue;
    if (found->is_number_unsigned() && found->get<uint64_t>() >= 1 &&
        found->get<uint64_t>() <= kMaxOutputTokens) {
      return found->get<int32_t>();
    }
    throw Error(fmt::format("{}: {} must be 1 to {}", place, name, kMaxOutputTokens));
  }
  return 0;
}

RequestShape shape_of_json(std::string_view line, const std::string& place) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) throw Error(place + ": not a JSON object");
  const Json turns = json.value("turns", Json());
  const Json first = turns.is_array() && !turns.empty() ? turns.front() : Json();
  const Json prompt = json.value("prompt", Json());
  const Json& text = prompt.is_string() ? prompt : first;
  if (!text.is_string()) throw Error(place + " has neither \"prompt\" nor \"turns\"");
  if (text.get_ref<const std::string&>().empty()) throw Error(place + ": the prompt is empty");
  return {{.output_len = output_len_of(json, place)}, text.get<std::string>()};
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
    shape.row.input_len =
        options.random_prefix_len + random_length(input_len, options.random_range_ratio, &draws);
    shape.row.output_len = random_length(output_len, options.random_range_ratio, &draws);
  }
  return shapes;
}

std::vector<RequestShape> custom_shapes(const ServeBenchOptions& options, const std::string& text) {
  const std::vector<RequestShape> lines = parse_prompt_lines(text, options.dataset_path);
  std::vector<RequestShape> shapes(
      options.num_prompts > 0 ? static_cast<size_t>(options.num_prompts) : lines.size());
  for (size_t i = 0; i < shapes.size(); ++i) {  // from the beginning again when the file is short
    shapes[i] = lines[i % lines.size()];
    int32_t& output_len = shapes[i].row.output_len;
    output_len = options.output_len > 0 ? options.output_len
                 : output_len > 0       ? output_len
                                        : kDefaultOutputLen;
  }
  return shapes;
}

std::vector<RequestShape> trace_shapes(const ServeBenchOptions& options, const std::string& text) {
  std::vector<TraceRow> rows = parse_mooncake_trace(text, options.dataset_path);
  if (options.num_prompts > 0 && static_cast<size_t>(options.num_prompts) < rows.size())
    rows.resize(static_cast<size_t>(options.num_prompts));
  scale_trace(options.time_scale, options.length_scale, &rows);
  std::vector<RequestShape> shapes;
  for (TraceRow& row : rows) shapes.push_back({std::move(row), {}});
  return shapes;
}

std::vector<double> times_of(std::span<const RequestShape> shapes, const ArrivalSpec& arrivals) {
  if (arrivals.rate_per_s > 0) return arrival_times(arrivals, shapes.size());
  std::vector<double> times;
  for (const RequestShape& shape : shapes)
    times.push_back(shape.row.arrival_s - shapes.front().row.arrival_s);
  return times;
}

std::vector<PromptPiece> pieces_of(const RequestShape& shape, const RunSpec& run, int32_t index) {
  if (run.random_prefix_len == 0) return trace_pieces(shape.row, run.length_scale, run.salt, index);
  const TraceRow own{.input_len = shape.row.input_len - run.random_prefix_len};
  std::vector<PromptPiece> pieces = trace_pieces(own, 1, run.salt, index);
  pieces.insert(pieces.begin(), {mix_seed(run.salt, kPrefixKey), run.random_prefix_len});
  return pieces;
}

}  // namespace

std::vector<double> arrival_times(const ArrivalSpec& spec, size_t count) {
  std::vector<double> times(count, 0.0);
  if (count == 0 || std::isinf(spec.rate_per_s)) return times;
  SeededDraws draws(spec.seed, kArrivalStream);
  double now = 0;
  for (double& time : times) {
    now += std::isinf(spec.burstiness) ? 1 : draws.gamma(spec.burstiness) / spec.burstiness;
    time = now;
  }
  // With a very small burstiness every gap may underflow to zero.
  const double scale = now > 0 ? static_cast<double>(count) / spec.rate_per_s / now : 0;
  for (double& time : times) time *= scale;
  return times;
}

PromptMaker::PromptMaker(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {
  if (tokenizer_) words_ = words_of(*tokenizer_);
  if (tokenizer_ && words_.size() < kMinWords)
    throw Error(
        fmt::format("the tokenizer has only {} whole words; leave --tokenizer out", words_.size()));
  std::istringstream common(kCommonWords);
  for (std::string word; !tokenizer_ && common >> word;) words_.push_back(" " + word);
}

void PromptMaker::append(const PromptPiece& piece, std::string* text) const {
  SeededDraws draws(piece.key, kWordStream);
  for (int32_t i = 0; i < piece.num_tokens; ++i)
    *text += words_[draws.below(static_cast<uint32_t>(words_.size()))];
}

ServePrompt PromptMaker::make(const std::vector<PromptPiece>& pieces) const {
  int32_t num_tokens = 0;
  std::string begin;
  for (size_t i = 0; i < pieces.size(); ++i) {
    num_tokens += pieces[i].num_tokens;
    if (i + 1 < pieces.size()) append(pieces[i], &begin);
  }
  PromptPiece last = pieces.empty() ? PromptPiece{} : pieces.back();
  ServePrompt prompt;
  // Special tokens, and words that the tokenizer joins after all, change the count a little. The
  // space before the first word stays: without it the word may be several tokens.
  for (int round = 0; round < kFittingRounds; ++round) {
    prompt = {begin, num_tokens};
    append(last, &prompt.text);
    if (!tokenizer_) {
      if (!prompt.text.empty()) prompt.text.erase(0, 1);
      return prompt;
    }
    prompt.num_tokens = static_cast<int32_t>(tokenizer_->encode(prompt.text).size());
    const int32_t wanted = last.num_tokens + num_tokens - prompt.num_tokens;
    if (prompt.num_tokens == num_tokens || wanted < 0 || (wanted == 0 && begin.empty())) break;
    last.num_tokens = wanted;
  }
  return prompt;
}

std::vector<RequestShape> parse_prompt_lines(std::string_view text, const std::string& origin) {
  std::vector<RequestShape> shapes;
  for_each_line(text, origin, [&](std::string_view line, const std::string& place) {
    shapes.push_back(line.front() == '{' ? shape_of_json(line, place)
                                         : RequestShape{{}, std::string(line)});
  });
  if (shapes.empty()) throw Error(fmt::format("{} has no prompts", origin));
  return shapes;
}

std::vector<RequestShape> load_shapes(const ServeBenchOptions& options, int32_t max_model_len) {
  if (options.dataset == "custom")
    return custom_shapes(options, read_text_file(options.dataset_path, kMaxFileBytes));
  const std::vector<RequestShape> shapes =
      options.dataset == "random"
          ? random_shapes(options, max_model_len)
          : trace_shapes(options, read_text_file(options.dataset_path, kMaxFileBytes));
  int64_t num_tokens = 0;
  for (const RequestShape& shape : shapes) num_tokens += shape.row.input_len;
  if (num_tokens > kMaxPromptTokens)
    throw Error(fmt::format(
        "the prompts have {} tokens together, more than {}: lower num_prompts or length_scale",
        num_tokens,
        kMaxPromptTokens));
  return shapes;
}

void check_body_option(const std::string& json, const char* option) {
  if (!json.empty() && !Json::parse(json, nullptr, false).is_object())
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
  } else {
    body["prompt"] = prompt.text;
  }
  for (const std::string& more : {spec.extra_body, spec.variant_body}) {
    if (!more.empty()) body.merge_patch(Json::parse(more));
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<PlannedRequest> plan_run(std::span<const RequestShape> shapes,
                                     const RunSpec& run,
                                     const BodySpec& body,
                                     const PromptMaker& prompts) {
  const std::vector<double> times = times_of(shapes, run.arrivals);
  std::vector<PlannedRequest> requests;
  for (size_t i = 0; i < shapes.size(); ++i) {
    ServePrompt prompt{shapes[i].text, 0};
    if (prompt.text.empty())
      prompt = prompts.make(pieces_of(shapes[i], run, static_cast<int32_t>(i)));
    const int32_t output_len = shapes[i].row.output_len;
    requests.push_back(
        {times[i], request_body(body, prompt, output_len), prompt.num_tokens, output_len});
  }
  return requests;
}

}  // namespace outrider
