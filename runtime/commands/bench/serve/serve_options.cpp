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

constexpr int32_t kMostTokens = 16 << 20;

std::vector<Option> target_rows(ServeBenchOptions* o) {
  return {
      text_option("base_url", &o->base_url, "the server, http://host:port; else --host and --port"),
      text_option(
          "endpoint", &o->endpoint, "a path that ends in /completions or /chat/completions"),
      list_option("header", &o->headers, "NAME=VALUE sent with every request; several"),
      text_option("extra_body", &o->extra_body, "JSON object merged into every request"),
      text_option("compare_body",
                  &o->compare_body,
                  "JSON object: every block of requests is sent with and without it, in turns"),
      integer_option("compare_blocks",
                     &o->compare_blocks,
                     2,
                     1000,
                     "blocks that compare_body cuts the requests into"),
      integer_option("num_warmups", &o->num_warmups, 0, 1000, "requests before the clock starts"),
      integer_option("ready_check_timeout_sec",
                     &o->ready_check_timeout_s,
                     0,
                     86400,
                     "seconds to wait for /health; 0 = do not ask"),
      number_option(
          "request_timeout", &o->request_timeout_s, 0.001, 86400, "seconds for one answer"),
      flag_option("continuous_usage",
                  &o->continuous_usage,
                  "ask for usage with every chunk, which counts its tokens; some servers refuse"),
  };
}

std::vector<Option> prompt_rows(ServeBenchOptions* o) {
  return {
      with_aliases(choice_option("dataset_name",
                                 &o->dataset,
                                 {"random", "custom", "azure", "mooncake"},
                                 "random lengths; custom: a file of prompts; azure (CSV) and "
                                 "mooncake (JSON lines): recorded traffic"),
                   {"--dataset"}),
      path_option("dataset_path", &o->dataset_path, "the file of custom, azure, mooncake"),
      integer_option("num_prompts",
                     &o->num_prompts,
                     1,
                     10000000,
                     "requests; default: 1000, or rate times duration, or the whole file"),
      with_aliases(
          integer_option("random_input_len",
                         &o->random_input_len,
                         1,
                         kMostTokens,
                         "tokens of a prompt; default: 1024, at most half of max_model_len"),
          {"--input-len"}),
      integer_option("random_output_len",
                     &o->random_output_len,
                     1,
                     kMostTokens,
                     "most tokens of an answer; default: 128, at most a quarter of max_model_len"),
      number_option("random_range_ratio",
                    &o->random_range_ratio,
                    0,
                    1,
                    "lengths are drawn from length * (1 -+ this)"),
      integer_option("random_prefix_len",
                     &o->random_prefix_len,
                     0,
                     kMostTokens,
                     "tokens before them that all prompts share"),
      integer_option("output_len",
                     &o->output_len,
                     1,
                     kMostTokens,
                     "most tokens of an answer, for random and custom; default: 128"),
      number_option("time_scale", &o->time_scale, 0, 1e6, "a trace's times are multiplied by it"),
      number_option(
          "length_scale", &o->length_scale, 1e-6, 1e3, "a trace's lengths are multiplied by it"),
      path_option("tokenizer",
                  &o->tokenizer,
                  "folder with tokenizer.json: prompts are made of its words and counted with it"),
      choice_option("prompt_form",
                    &o->prompt_form,
                    {"text", "ids"},
                    "how made prompts are sent; ids need tokenizer or vocab_size"),
      integer_option("vocab_size", &o->vocab_size, 1, INT32_MAX, "for ids without a tokenizer"),
      flag_option("ignore_eos", &o->ignore_eos, "answers go on to their longest"),
      number_option("temperature", &o->temperature, 0, 2, "0 = greedy"),
      integer_option("seed", &o->seed, 0, INT32_MAX, "of arrivals, lengths and prompts"),
  };
}

std::vector<Option> load_rows(ServeBenchOptions* o) {
  return {
      text_option("request_rate",
                  &o->request_rate,
                  "requests per second; inf = all at once; traces have their own times"),
      text_option("request_rates", &o->request_rates, "several in turn: 1,2,4"),
      number_option("burstiness",
                    &o->burstiness,
                    1e-3,
                    INFINITY,
                    "shape of the gaps' gamma law: 1 = Poisson, less = bursts, more = even"),
      integer_option("max_concurrency", &o->max_concurrency, 1, 4096, "requests in flight at most"),
      text_option("max_concurrencies", &o->max_concurrencies, "several in turn: 1,4,8,16"),
      number_option("duration", &o->duration_s, 0, 1e9, "seconds after which nothing is sent; 0 = no end"),
      list_option("goodput",
                  &o->goodput,
                  "limits in ms that make a request good: ttft:500 tpot:50 "
                  "e2el:5000"),
      with_aliases(
          text_option("metric_percentiles", &o->percentiles, "which percentiles are reported"),
          {"--percentiles"}),
  };
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = text.find_first_not_of(" ,\t\n");
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const size_t end = std::min(text.find_first_of(" ,\t\n"), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

bool parse_number(std::string_view text, double* out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return code == std::errc() && end == text.data() + text.size();
}

double rate_of(std::string_view text, const char* option) {
  double rate = 0;
  if (!parse_number(text, &rate) || !(rate > 0))
    throw Error(fmt::format(
        "{}: '{}' must be a number of requests per second above 0, or inf", option, text));
  return rate;
}

std::vector<ServeLoad> loads_of(const ServeBenchOptions& options, double rate) {
  std::vector<ServeLoad> loads;
  for (const std::string_view word : words_of(options.request_rates))
    loads.push_back({rate_of(word, "request_rates"), options.max_concurrency});
  for (const std::string_view word : words_of(options.max_concurrencies)) {
    double count = 0;
    if (!parse_number(word, &count) || !(count >= 1 && count <= 4096) ||
        count != std::floor(count)) {
      throw Error(fmt::format("max_concurrencies: '{}' must be a number of 1 to 4096", word));
    }
    loads.push_back({rate, static_cast<int32_t>(count)});
  }
  if (loads.empty()) loads.push_back({rate, options.max_concurrency});
  return loads;
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

std::vector<std::pair<std::string, std::string>> headers_of(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> headers;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const bool bad = std::any_of(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; });
    if (equals == std::string::npos || equals == 0 || bad)
      throw Error("header: must be NAME=VALUE without control characters");
    headers.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return headers;
}

ServeDataset dataset_of(const std::string& name) {
  if (name == "custom") return ServeDataset::kCustom;
  if (name == "azure") return ServeDataset::kAzure;
  if (name == "mooncake") return ServeDataset::kMooncake;
  return ServeDataset::kRandom;
}

}  // namespace

std::vector<Option> serve_bench_options(ServeBenchOptions* options) {
  std::vector<Option> rows = target_rows(options);
  for (Option& row : load_rows(options)) rows.push_back(std::move(row));
  for (Option& row : prompt_rows(options)) rows.push_back(std::move(row));
  return rows;
}

GoodputLimits parse_goodput(const std::vector<std::string>& texts) {
  GoodputLimits limits;
  for (const std::string& text : texts) {
    for (const std::string_view word : words_of(text)) {
      const size_t colon = word.find(':');
      const std::string_view name = word.substr(0, colon);
      std::optional<double>* limit = name == "ttft"   ? &limits.ttft_ms
                                     : name == "tpot" ? &limits.tpot_ms
                                     : name == "e2el" ? &limits.e2el_ms
                                                      : nullptr;
      double value = 0;
      if (limit == nullptr || colon == std::string_view::npos ||
          !parse_number(word.substr(colon + 1), &value) || !(value >= 0)) {
        throw Error(fmt::format(
            "goodput: '{}' must be ttft, tpot or e2el, a colon and milliseconds", word));
      }
      *limit = value;
    }
  }
  return limits;
}

ServeSetup understand_serve_options(const ServeBenchOptions& options,
                                    bool is_rate_given,
                                    const std::vector<std::string>& more_goodput) {
  ServeSetup setup;
  setup.dataset = dataset_of(options.dataset);
  const bool is_trace =
      setup.dataset == ServeDataset::kAzure || setup.dataset == ServeDataset::kMooncake;
  if (setup.dataset != ServeDataset::kRandom && options.dataset_path.empty())
    throw Error(fmt::format("dataset_name {} needs dataset_path", options.dataset));
  if (!options.request_rates.empty() && !options.max_concurrencies.empty())
    throw Error("request_rates and max_concurrencies cannot both be swept in one run");
  if (!options.request_rates.empty() && is_rate_given)
    throw Error("give request_rate or request_rates, not both");
  if (!options.max_concurrencies.empty() && options.max_concurrency > 0)
    throw Error("give max_concurrency or max_concurrencies, not both");
  if (options.goodput.empty()) refuse_surplus_words(more_goodput, 0);
  setup.sweeps_rates = !options.request_rates.empty();
  setup.loads = loads_of(
      options, is_trace && !is_rate_given ? 0 : rate_of(options.request_rate, "request_rate"));
  std::vector<std::string> goodput = options.goodput;
  goodput.insert(goodput.end(), more_goodput.begin(), more_goodput.end());
  setup.summary.goodput = parse_goodput(goodput);
  setup.summary.percents = percents_of(options.percentiles);
  setup.headers = headers_of(options.headers);
  setup.chat = options.endpoint.ends_with("/chat/completions");
  if (!options.endpoint.starts_with('/') ||
      (!setup.chat && !options.endpoint.ends_with("/completions"))) {
    throw Error(fmt::format("endpoint: '{}' must end in /completions or /chat/completions",
                            options.endpoint));
  }
  if (setup.chat && options.prompt_form == "ids")
    throw Error("prompt_form ids is for /v1/completions: chat takes text");
  return setup;
}

}  // namespace outrider
