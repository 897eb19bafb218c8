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
constexpr int32_t kDefaultPrompts = 1000;
constexpr int32_t kDefaultInputLen = 1024;
constexpr int32_t kDefaultOutputLen = 128;
constexpr int64_t kMaxPromptTokens = 400000000;  // of a whole run, since all bodies lie in memory
constexpr size_t kMinWords = 16;
constexpr size_t kMaxWords = 4096;
constexpr int kFittingRounds = 6;
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

std::vector<RequestShape> file_shapes(const ServeBenchOptions& options, const std::string& text) {
  const bool is_trace = options.dataset == "timed_trace";
  const std::vector<RequestShape> lines = is_trace ? parse_timed_trace(text, options.dataset_path)
                                                   : parse_prompt_lines(text, options.dataset_path);
  size_t count = lines.size();
  if (options.num_prompts > 0) count = static_cast<size_t>(options.num_prompts);
  if (is_trace) count = std::min(count, lines.size());
  std::vector<RequestShape> shapes(count);
  for (size_t i = 0; i < count; ++i) {  // from the beginning again when the file is short
    shapes[i] = lines[i % lines.size()];
    if (!is_trace && options.output_len > 0) shapes[i].output_len = options.output_len;
    if (shapes[i].output_len == 0) shapes[i].output_len = kDefaultOutputLen;
  }
  return shapes;
}

}  // namespace

std::vector<RequestShape> load_shapes(const ServeBenchOptions& options, int32_t max_model_len) {
  const std::vector<RequestShape> shapes =
      options.dataset == "random"
          ? random_shapes(options, max_model_len)
          : file_shapes(options, read_text_file(options.dataset_path, kMaxPromptFileBytes));
  int64_t num_tokens = 0;
  for (const RequestShape& shape : shapes) num_tokens += shape.input_len;
  if (num_tokens <= kMaxPromptTokens) return shapes;
  throw Error(fmt::format("the prompts have {} tokens together, more than {}: lower num_prompts",
                          num_tokens,
                          kMaxPromptTokens));
}

std::vector<double> arrival_times(double rate, double burstiness, uint64_t seed, size_t count) {
  std::vector<double> times(count, 0.0);
  if (count == 0 || std::isinf(rate)) return times;
  SeededDraws draws(seed, kArrivalStream);
  double now = 0;
  for (double& time : times) {
    now += std::isinf(burstiness) ? 1 : draws.gamma(burstiness) / burstiness;
    time = now;
  }
  // With a very small burstiness every gap may underflow to zero.
  const double scale = now > 0 ? static_cast<double>(count) / rate / now : 0;
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

ServePrompt PromptMaker::make(const PromptPiece& shared, PromptPiece own) const {
  const int32_t num_tokens = shared.num_tokens + own.num_tokens;
  std::string begin;
  append(shared, &begin);
  ServePrompt prompt;
  // Special tokens, and words that the tokenizer joins after all, change the count a little. The
  // space before the first word stays: without it the word may be several tokens.
  for (int round = 0; round < kFittingRounds; ++round) {
    prompt = {begin, num_tokens};
    append(own, &prompt.text);
    if (!tokenizer_) {
      if (!prompt.text.empty()) prompt.text.erase(0, 1);
      return prompt;
    }
    prompt.num_tokens = static_cast<int32_t>(tokenizer_->encode(prompt.text).size());
    const int32_t wanted = own.num_tokens + num_tokens - prompt.num_tokens;
    if (prompt.num_tokens == num_tokens || wanted < 0 || (wanted == 0 && begin.empty())) break;
    own.num_tokens = wanted;
  }
  return prompt;
}

std::string request_body(const RunSpec& run, const ServePrompt& prompt, int32_t output_len) {
  const ServeBenchOptions& options = run.options;
  Json body = {{"model", run.model},
               {"temperature", options.temperature},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (options.continuous_usage) body["stream_options"]["continuous_usage_stats"] = true;
  if (options.ignore_eos) body["ignore_eos"] = true;
  body[run.chat ? "max_completion_tokens" : "max_tokens"] = output_len;
  if (run.chat) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.text}}});
  } else {
    body["prompt"] = prompt.text;
  }
  if (!options.extra_body.empty()) body.merge_patch(Json::parse(options.extra_body));
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<PlannedRequest> plan_run(const std::vector<RequestShape>& shapes,
                                     const RunSpec& run,
                                     const PromptMaker& prompts) {
  const ServeBenchOptions& options = run.options;
  const auto seed = static_cast<uint64_t>(options.seed);
  std::vector<double> times;
  if (run.rate_per_s > 0)
    times = arrival_times(run.rate_per_s, options.burstiness, seed, shapes.size());
  const PromptPiece shared{mix_seed(run.salt, kPrefixKey),
                           options.dataset == "random" ? options.random_prefix_len : 0};
  std::vector<PlannedRequest> requests;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const RequestShape& shape = shapes[i];
    ServePrompt prompt{shape.text, 0};
    if (prompt.text.empty())
      prompt = prompts.make(shared, {mix_seed(run.salt, i), shape.input_len - shared.num_tokens});
    requests.push_back({run.rate_per_s > 0 ? times[i] : shape.arrival_s,
                        request_body(run, prompt, shape.output_len),
                        prompt.num_tokens,
                        shape.output_len});
  }
  return requests;
}

}  // namespace outrider
