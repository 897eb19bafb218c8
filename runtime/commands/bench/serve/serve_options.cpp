// See serve_options.h.
#include "runtime/commands/bench/serve/serve_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/commands/bench/report/bench_lists.h"

namespace outrider {
namespace {

constexpr int32_t kMost = 16 << 20;  // tokens

std::vector<std::string> words_of(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

bool parse_number(std::string_view text, double* out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return code == std::errc() && end == text.data() + text.size();
}

std::pair<std::string, std::string> header_of(const std::string& text) {
  const size_t equals = text.find('=');
  const bool bad =
      std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < ' '; });
  if (equals == std::string::npos || equals == 0 || bad)
    throw Error("header: must be NAME=VALUE without control characters");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void add_goodput(std::string_view word, GoodputLimits* limits) {
  const std::pair<std::string_view, std::optional<double>*> known[] = {
      {"ttft:", &limits->ttft_ms}, {"tpot:", &limits->tpot_ms}, {"e2el:", &limits->e2el_ms}};
  for (const auto& [name, limit] : known) {
    double value = 0;
    if (word.starts_with(name) && parse_number(word.substr(name.size()), &value) && value >= 0) {
      *limit = value;
      return;
    }
  }
  throw Error(
      fmt::format("goodput: '{}' must be ttft, tpot or e2el, a colon and milliseconds", word));
}

}  // namespace

// clang-format off
std::vector<Option> serve_bench_options(ServeBenchOptions* o) {
  return {
      text_option("base_url", &o->base_url, "the server, http://host:port; else --host and --port"),
      choice_option("backend", &o->backend, {"openai", "openai-chat"}, "completions or chat"),
      text_option("endpoint", &o->endpoint, "path ending in /completions; default: the backend's"),
      secret_option(
          list_option("header", &o->headers, "NAME=VALUE sent with every request; several")),
      text_option("extra_body", &o->extra_body, "JSON object merged into every request"),
      integer_option("num_warmups", &o->num_warmups, 0, 1000, "requests before the clock starts"),
      integer_option("ready_check_timeout_sec", &o->ready_check_timeout_s, 0, 86400,
                     "0 = do not wait for /health"),
      number_option("request_timeout", &o->request_timeout_s, 0.001, 86400,
                    "seconds for one answer"),
      flag_option("continuous_usage", &o->continuous_usage,
                  "ask for running usage, which counts a chunk's tokens; some servers refuse it"),
      number_option("request_rate", &o->request_rate, 1e-9, INFINITY,
                    "requests per second; inf = all at once; a trace has its own times"),
      number_option("burstiness", &o->burstiness, 1e-3, INFINITY,
                    "shape of the gaps' gamma law: 1 = Poisson, less = bursts, more = even"),
      integer_option("max_concurrency", &o->max_concurrency, 1, 4096, "requests in flight at most"),
      list_option("goodput", &o->goodput,
                  "limits in ms that make a request good: ttft:500 tpot:50 e2el:5000"),
      with_aliases(number_list_option("metric_percentiles", &o->percents, 0, 100,
                                      "which percentiles are reported"), {"--percentiles"}),
      with_aliases(choice_option("dataset_name", &o->dataset, {"random", "custom", "timed_trace"},
                                 "random lengths; custom: a file of prompts; timed_trace: JSON "
                                 "lines of recorded times and lengths"), {"--dataset"}),
      path_option("dataset_path", &o->dataset_path, "the file of custom, timed_trace"),
      integer_option("num_prompts", &o->num_prompts, 1, 10000000,
                     "requests; default: 1000, or the whole file"),
      with_aliases(integer_option("random_input_len", &o->random_input_len, 1, kMost,
                                  "tokens of a prompt; default: 1024, at most half of "
                                  "max_model_len"), {"--input-len"}),
      integer_option("random_output_len", &o->random_output_len, 1, kMost,
                     "most tokens of an answer; default: 128, at most a quarter of max_model_len"),
      number_option("random_range_ratio", &o->random_range_ratio, 0, 1,
                    "lengths are drawn from length * (1 -+ this)"),
      integer_option("random_prefix_len", &o->random_prefix_len, 0, kMost,
                     "tokens before them that all prompts share"),
      integer_option("output_len", &o->output_len, 1, kMost,
                     "most tokens of an answer, for random and custom; default: 128"),
      path_option("tokenizer", &o->tokenizer,
                  "folder with tokenizer.json: prompts are made of its words and counted with it"),
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
  if (options.dataset == "random" && !options.dataset_path.empty())
    throw Error("dataset_path needs a dataset_name: random has none");
  const bool own_times = options.dataset == "timed_trace" && !is_rate_given;
  setup.rate_per_s = own_times ? 0 : options.request_rate;
  if (options.goodput.empty()) refuse_surplus_words(more_goodput, 0);
  for (const auto* texts : {&options.goodput, &more_goodput}) {
    for (const std::string& text : *texts) {
      for (const std::string& word : words_of(text)) add_goodput(word, &setup.goodput);
    }
  }
  if (!options.extra_body.empty() &&
      !nlohmann::json::parse(options.extra_body, nullptr, false).is_object())
    throw Error("extra_body: must be a JSON object");
  for (const std::string& text : options.headers) setup.target.headers.push_back(header_of(text));
  setup.target.request_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(1e3 * options.request_timeout_s));
  std::string& endpoint = setup.target.endpoint;
  endpoint = options.endpoint;
  if (endpoint.empty())
    endpoint = options.backend == "openai" ? "/v1/completions" : "/v1/chat/completions";
  setup.chat = endpoint.ends_with("/chat/completions");
  if (!endpoint.starts_with('/') || !endpoint.ends_with("/completions"))
    throw Error(
        fmt::format("endpoint: '{}' must end in /completions or /chat/completions", endpoint));
  if (options.backend == "openai-chat" && !setup.chat)
    throw Error(fmt::format("endpoint: '{}' is not the chat backend's", endpoint));
  return setup;
}

}  // namespace outrider
