// See serve_options.h.
#include "runtime/commands/bench/serve/serve_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr int32_t kMost = 16 << 20;  // tokens

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kGaps = " ,\t\n";
  std::vector<std::string_view> words;
  for (size_t end = 0, begin = 0;
       (begin = text.find_first_not_of(kGaps, end)) != std::string_view::npos;) {
    end = std::min(text.find_first_of(kGaps, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
  }
  return words;
}

bool parse_number(std::string_view text, double* out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return code == std::errc() && end == text.data() + text.size();
}

double rate_of(std::string_view text) {
  double rate = 0;
  if (parse_number(text, &rate) && rate > 0) return rate;
  throw Error(fmt::format(
      "request_rate: '{}' must be a number of requests per second above 0, or inf", text));
}

std::vector<double> percents_of(const std::string& text) {
  std::vector<double> percents;
  for (const std::string_view word : words_of(text)) {
    double percent = 0;
    if (!parse_number(word, &percent) || !(percent >= 0 && percent <= 100))
      throw Error(fmt::format("metric_percentiles: '{}' must be a number of 0 to 100", word));
    percents.push_back(percent);
  }
  if (percents.empty()) throw Error("metric_percentiles: give at least one, like 50,95,99");
  return percents;
}

std::pair<std::string, std::string> header_of(const std::string& text) {
  const size_t equals = text.find('=');
  const bool bad = std::any_of(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; });
  if (equals == std::string::npos || equals == 0 || bad)
    throw Error("header: must be NAME=VALUE without control characters");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void add_goodput(std::string_view word, GoodputLimits* limits) {
  const size_t colon = std::min(word.find(':'), word.size());
  const std::string_view name = word.substr(0, colon);
  std::optional<double>* limit = name == "ttft"   ? &limits->ttft_ms
                                 : name == "tpot" ? &limits->tpot_ms
                                 : name == "e2el" ? &limits->e2el_ms
                                                  : nullptr;
  double value = 0;
  if (limit == nullptr || colon == word.size() || !parse_number(word.substr(colon + 1), &value) ||
      !(value >= 0)) {
    throw Error(
        fmt::format("goodput: '{}' must be ttft, tpot or e2el, a colon and milliseconds", word));
  }
  *limit = value;
}

}  // namespace

// clang-format off
std::vector<Option> serve_bench_options(ServeBenchOptions* o) {
  return {
      text_option("base_url", &o->base_url, "the server, http://host:port; else --host and --port"),
      text_option("endpoint", &o->endpoint, "/v1/completions, /v1/chat/completions, or a path ending so"),
      list_option("header", &o->headers, "NAME=VALUE sent with every request; several"),
      text_option("extra_body", &o->extra_body, "JSON object merged into every request"),
      text_option("compare_body", &o->compare_body, "JSON object: each block of requests runs with and without it, in turns"),
      integer_option("compare_blocks", &o->compare_blocks, 2, 1000, "blocks that compare_body cuts the requests into"),
      integer_option("num_warmups", &o->num_warmups, 0, 1000, "requests before the clock starts"),
      integer_option("ready_check_timeout_sec", &o->ready_check_timeout_s, 0, 86400, "seconds to wait for /health; 0 = do not ask"),
      number_option("request_timeout", &o->request_timeout_s, 0.001, 86400, "seconds for one answer"),
      flag_option("continuous_usage", &o->continuous_usage, "ask for running usage, which counts a chunk's tokens; --no-continuous-usage for servers that refuse it"),
      text_option("request_rate", &o->request_rate, "requests per second; inf = all at once; a trace has its own times"),
      number_option("burstiness", &o->burstiness, 1e-3, INFINITY, "shape of the gaps' gamma law: 1 = Poisson, less = bursts, more = even"),
      integer_option("max_concurrency", &o->max_concurrency, 1, 4096, "requests in flight at most"),
      list_option("goodput", &o->goodput, "limits in ms that make a request good: ttft:500 tpot:50 e2el:5000"),
      with_aliases(text_option("metric_percentiles", &o->percentiles, "which percentiles are reported"), {"--percentiles"}),
      with_aliases(choice_option("dataset_name", &o->dataset, {"random", "custom", "mooncake"}, "random lengths; custom: a file of prompts; mooncake: recorded traffic (JSON lines)"), {"--dataset"}),
      path_option("dataset_path", &o->dataset_path, "the file of custom, mooncake"),
      integer_option("num_prompts", &o->num_prompts, 1, 10000000, "requests; default: 1000, or the whole file"),
      with_aliases(integer_option("random_input_len", &o->random_input_len, 1, kMost, "tokens of a prompt; default: 1024, at most half of max_model_len"), {"--input-len"}),
      integer_option("random_output_len", &o->random_output_len, 1, kMost, "most tokens of an answer; default: 128, at most a quarter of max_model_len"),
      number_option("random_range_ratio", &o->random_range_ratio, 0, 1, "lengths are drawn from length * (1 -+ this)"),
      integer_option("random_prefix_len", &o->random_prefix_len, 0, kMost, "tokens before them that all prompts share"),
      integer_option("output_len", &o->output_len, 1, kMost, "most tokens of an answer, for random and custom; default: 128"),
      number_option("time_scale", &o->time_scale, 0, 1e6, "a trace's times are multiplied by it"),
      number_option("length_scale", &o->length_scale, 1e-6, 1e3, "a trace's lengths are multiplied by it"),
      path_option("tokenizer", &o->tokenizer, "folder with tokenizer.json: prompts are made of its words and counted with it"),
      flag_option("ignore_eos", &o->ignore_eos, "answers go on to their longest"),
      number_option("temperature", &o->temperature, 0, 2, "0 = greedy"),
      integer_option("seed", &o->seed, 0, INT32_MAX, "of arrivals, lengths and prompts"),
  };
}
// clang-format on

ServeSetup understand_serve_options(const ServeBenchOptions& options,
                                    bool is_rate_given,
                                    const std::vector<std::string>& more_goodput) {
  ServeSetup setup;
  if (options.dataset != "random" && options.dataset_path.empty())
    throw Error(fmt::format("dataset_name {} needs dataset_path", options.dataset));
  const bool own_times = options.dataset == "mooncake" && !is_rate_given;
  setup.load = {own_times ? 0 : rate_of(options.request_rate), options.max_concurrency};
  if (options.goodput.empty()) refuse_surplus_words(more_goodput, 0);
  for (const auto* texts : {&options.goodput, &more_goodput}) {
    for (const std::string& text : *texts) {
      for (const std::string_view word : words_of(text)) add_goodput(word, &setup.summary.goodput);
    }
  }
  setup.summary.percents = percents_of(options.percentiles);
  for (const std::string& text : options.headers) setup.headers.push_back(header_of(text));
  setup.chat = options.endpoint.ends_with("/chat/completions");
  if (!options.endpoint.starts_with('/') || !options.endpoint.ends_with("/completions"))
    throw Error(fmt::format("endpoint: '{}' must end in /completions or /chat/completions",
                            options.endpoint));
  return setup;
}

}  // namespace outrider
