// See config.h.
#include "runtime/base/settings/config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/log.h"
#include "runtime/base/settings/foreign_options.h"

namespace outrider {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 4;
constexpr size_t kMaxValues = 10000;  // aliases could make more of a small file

// As the launcher says, of whichever MPI; true without one.
bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  }
  return true;
}

std::string environment_name(const std::string& key) {
  std::string name = "OUTRIDER_";
  for (char c : key)
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// A YAML tree as flat values: {speculative_config: {model: x}} gives speculative_config.model.
struct FlatYaml {
  const std::string& file;
  std::vector<GivenValue> values = {};
  size_t num_nodes = 0;  // groups and lists too

  void add(const YAML::Node& node, const std::string& prefix, int depth);
  void add_group(const YAML::Node& group, const std::string& prefix, int depth);
  std::string origin_of(const YAML::Node& node) const {
    return node.Mark().line >= 0 ? fmt::format("{}:{}", file, node.Mark().line + 1) : file;
  }
};

void FlatYaml::add(const YAML::Node& node, const std::string& prefix, int depth) {
  if (depth > kMaxDepth) throw Error(fmt::format("{}: '{}' is nested too deep", file, prefix));
  if (++num_nodes > kMaxValues)
    throw Error(fmt::format("{}: more than {} values", file, kMaxValues));
  if (node.IsMap()) {
    add_group(node, prefix, depth);
  } else if (node.IsSequence()) {
    for (const auto& element : node) add(element, prefix, depth + 1);
  } else {
    // "key:" alone is an empty text; whether the key may have that is for the table to say.
    values.push_back({prefix, node.IsScalar() ? node.as<std::string>() : "", origin_of(node)});
  }
}

void FlatYaml::add_group(const YAML::Node& group, const std::string& prefix, int depth) {
  std::map<std::string, int> seen;
  for (const auto& entry : group) {
    std::string key = entry.first.as<std::string>();
    std::replace(key.begin(), key.end(), '-', '_');
    const std::string full = prefix.empty() ? key : prefix + "." + key;
    if (++seen[key] > 1)
      throw Error(fmt::format("{}: the key '{}' is there twice", origin_of(group), full));
    add(entry.second, full, depth + 1);
  }
}

// A list, or a group beside its dotted form, gives a key several values; only lists may have them.
void check_single(const std::vector<GivenValue>& values,
                  const std::vector<const Option*>& options) {
  for (const Option* option : options) {
    bool is_there = false;
    for (const GivenValue& given : values) {
      if (given.key != option->key || option->is_list) continue;
      if (std::exchange(is_there, true))
        throw Error(fmt::format("{}: '{}' has several values", given.origin, option->key));
    }
  }
}

std::vector<GivenValue> parse_yaml(const std::string& text,
                                   const std::string& prefix,
                                   const std::string& name,
                                   const std::vector<const Option*>& options) {
  FlatYaml flat{name};
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap() && !root.IsNull())
      throw Error(fmt::format("{}: not a list of 'key: value' lines", name));
    if (root.IsMap()) flat.add(root, prefix, 0);
  } catch (const YAML::Exception& error) {
    throw Error(fmt::format("{}: {}", name, error.what()));
  }
  for (GivenValue& given : flat.values) {
    for (const Option* option : options)
      if (!option->old_key.empty() && given.key == option->old_key) given.key = option->key;
  }
  check_single(flat.values, options);
  return std::move(flat.values);
}

std::vector<GivenValue> read_environment(const std::vector<const Option*>& options) {
  std::vector<GivenValue> values;
  for (const Option* option : options) {
    for (const std::string& key : {option->key, option->old_key}) {
      const std::string name = environment_name(key);
      const char* value = key.empty() ? nullptr : std::getenv(name.c_str());
      if (value != nullptr) values.push_back({option->key, value, name});
    }
  }
  return values;
}

// "speculative_config:" with nothing below it.
bool is_empty_group(const GivenValue& given, const std::vector<const Option*>& options) {
  return given.value.empty() &&
         std::any_of(options.begin(), options.end(), [&](const Option* option) {
           return option->key.starts_with(given.key + ".");
         });
}

// A later source replaces a list instead of adding to it.
void apply_source(const std::vector<GivenValue>& source,
                  const std::vector<const Option*>& options,
                  LoadedConfig* loaded) {
  for (const Option* option : options) {
    const bool is_given = std::any_of(source.begin(), source.end(), [&](const GivenValue& given) {
      return given.key == option->key;
    });
    if (option->is_list && is_given) option->clear();
  }
  for (const GivenValue& given : source) {
    if (is_empty_group(given, options)) continue;
    apply_value(given, options);
    loaded->given.push_back(given);
  }
}

// A word that stands alone is the model, so that it is never taken for nothing.
void take_model(ParsedArguments* parsed) {
  for (const std::string& model : parsed->positional) {
    for (const GivenValue& given : parsed->values) {
      if (given.key == "model" && given.value != model)
        throw Error(
            fmt::format("'{}' and --model {} are two models: give one", model, given.value));
    }
    parsed->values.push_back({"model", model, "command line"});
  }
}

// Rows under one heading after the other.
struct Table {
  std::vector<Option> rows;
  std::string group;

  void add(Option row, std::vector<std::string> aliases = {}) {
    row.group = group;
    rows.push_back(with_aliases(std::move(row), std::move(aliases)));
  }
};

void add_model_rows(Table& table, RunConfig* c) {
  table.group = "Model";
  table.add(
      path_option(
          "model",
          &c->model,
          "target: a Hugging Face folder, a GGUF file, 'embedded', or simulated: 'sim:step_ms=40', "
          "'sim:llama-70b-tp8'; for bench 'synth:SHAPE'"),
      {"-m"});
  table.add(
      text_option(
          "served_model_name", &c->served_model_name, "name in the API; default: the folder's"),
      {"--alias"});
  table.add(path_option(
      "chat_template", &c->chat_template, "Jinja file instead of the model's own template"));
  table.add(text_option("tool_call_parser",
                        &c->tool_call_parser,
                        "how the model writes tool calls: auto (by its template), hermes, "
                        "llama3_json, mistral, ..."));
  table.add(text_option("reasoning_parser",
                        &c->reasoning_parser,
                        "how it marks reasoning: auto (by its template), none, qwen3, ..."));
  table.add(choice_option("generation_config",
                          &c->generation_config,
                          {"auto", "vllm"},
                          "sampling defaults: the model's, or none"));
  table.add(choice_option("quantization",
                          &c->quantization,
                          {"none", "int8", "fp8"},
                          "what float weights become at load; int8 on CPUs, fp8 on GPUs"));
}

void add_scheduling_rows(Table& table, RunConfig* c) {
  table.group = "Scheduling and KV memory";
  table.add(
      integer_option(
          "max_model_len", &c->max_model_len, 0, INT32_MAX, "tokens of context; 0 = the model's"),
      {"-c", "--ctx-size"});
  table.add(integer_option("max_num_seqs",
                           &c->max_num_seqs,
                           1,
                           4096,
                           "sequences running at once; on GPUs 64 unless given"),
            {"-np", "--parallel"});
  table.add(integer_option(
      "max_num_batched_tokens", &c->max_num_batched_tokens, 1, 65536, "rows computed in a round"));
  table.add(integer_option("block_size", &c->block_size, 1, 1024, "positions per KV block"));
  table.add(flag_option("enable_prefix_caching",
                        &c->enable_prefix_caching,
                        "KV of a prefix that is still there is not computed again"));
  table.add(
      choice_option("scheduling_policy",
                    &c->scheduling_policy,
                    {"fcfs", "priority"},
                    "who runs first: by arrival, or by the requests' priority, then arrival"));
  table.add(integer_option("priority_aging_rounds",
                           &c->priority_aging_rounds,
                           0,
                           1000000,
                           "rounds of waiting that make up for one of priority; 0 = none ever do"));
  table.add(choice_option("capacity_scheduler_policy",
                          &c->capacity_scheduler_policy,
                          {"max_utilization", "guaranteed_no_evict"},
                          "let in what fits now, or only what can never be preempted"));
  table.add(size_option("kv_cache_memory_bytes",
                        &c->kv_cache_memory_bytes,
                        "KV memory per target rank; 0 = enough, at most 4G"));
}

void add_rank_rows(Table& table, RunConfig* c) {
  table.group = "Ranks, threads and devices";
  table.add(integer_option("tensor_parallel_size",
                           &c->tensor_parallel_size,
                           0,
                           64,
                           "target ranks; 0 = all but the draft's"),
            {"-tp"});
  table.add(integer_option("threads",
                           &c->threads,
                           0,
                           1024,
                           "threads per rank; 0 = cores divided among the host's targets"),
            {"-t"});
  table.add(number_option("watchdog_timeout",
                          &c->watchdog_timeout_s,
                          0,
                          86400,
                          "seconds until a target rank that is silent ends the job; 0 = never"));
  table.add(integer_option("watchdog_port",
                           &c->watchdog_port,
                           0,
                           65000,
                           "UDP port of rank 0, plus 1 for each next rank; 0 = any free ones"));
  table.add(text_option(
      "cpu_bind", &c->cpu_bind, "CPUs of the threads: auto, none, or per host 0-15 or 0-7|8-15"));
  table.add(choice_option("isa", &c->isa, {"auto", "scalar", "avx2", "avx512"}, "CPU kernels"));
  table.add(with_old_key(choice_option("activation_dtype",
                                       &c->activation_dtype,
                                       {"auto", "float32", "bfloat16"},
                                       "of products with bf16 weights; auto = bfloat16 where the "
                                       "CPU multiplies it"),
                         "dtype"),
            {"--dtype"});
  table.add(choice_option("device", &c->device, {"cpu", "cuda"}, "where the target computes"));
  table.add(
      number_option("gpu_memory_utilization",
                    &c->gpu_memory_utilization,
                    0.01,
                    1.0,
                    "share of a GPU's memory for weights, KV and buffers of all ranks on it"));
  table.add(with_words(choice_option("kv_cache_dtype",
                                     &c->kv_cache_dtype,
                                     {"auto", "float32", "bfloat16", "int8"},
                                     "of keys and values; auto = the activations' type"),
                       {{"bf16", "bfloat16"}, {"int8_per_token_head", "int8"}}));
  table.add(flag_option("enforce_eager", &c->enforce_eager, "on GPUs: no recorded graphs"));
  table.add(
      integer_option("cuda_device",
                     &c->cuda_device,
                     -1,
                     255,
                     "this rank's GPU among the visible ones; -1 = by its place on the host"));
  table.add(
      choice_option("device_sums",
                    &c->device_sums,
                    {"auto", "exchange", "hierarchical", "nccl", "staged"},
                    "how the target ranks' GPUs sum; auto = the best that all of them can have"));
  table.add(
      choice_option("numerics",
                    &c->numerics,
                    {"fast", "strict"},
                    "strict = the target's logits have the same bits on 1, 2, 4 and 8 ranks"));
}

void add_draft_rows(Table& table, RunConfig* c) {
  SpeculativeConfig* const s = &c->speculative;
  table.group = "Speculative decoding";
  const std::string prefix = "speculative_config.";
  table.add(choice_option(prefix + "method",
                          &s->method,
                          {"auto", "draft_model", "ngram", "unigram", "bigram", "grammar", "none"},
                          "who drafts; auto = draft_model when a draft is given"));
  table.add(path_option(prefix + "model", &s->model, "draft: a Hugging Face folder, or 'embedded'"),
            {"-md", "--model-draft"});
  table.add(choice_option(prefix + "quantization",
                          &s->quantization,
                          {"none", "int8", "fp8"},
                          "of the draft's weights, as quantization"));
  table.add(choice_option(prefix + "device",
                          &s->device,
                          {"auto", "cpu", "cuda"},
                          "where the draft computes; auto = as the target"));
  table.add(
      or_word(integer_option(prefix + "num_speculative_tokens",
                             &s->num_speculative_tokens,
                             1,
                             64,
                             "draft length; auto = what measured times and acceptance ask for"),
              "auto",
              &s->num_speculative_tokens,
              kAutoDraftLen),
      {"--draft-max"});
  table.add(with_old_key(choice_option(prefix + "async_drafting",
                                       &s->async_drafting,
                                       {"auto", "off", "chain", "cache"},
                                       "what a draft model does while the target verifies"),
                         prefix + "ride_ahead"));
  table.add(choice_option(prefix + "backup",
                          &s->backup,
                          {"ngram", "none"},
                          "who drafts where a draft model's block is late or missing"));
  table.add(integer_option(prefix + "prompt_lookup_max",
                           &s->prompt_lookup_max,
                           1,
                           64,
                           "n-gram: longest match looked for"));
  table.add(integer_option(prefix + "prompt_lookup_min",
                           &s->prompt_lookup_min,
                           1,
                           64,
                           "n-gram: shortest match that counts"));
  table.add(path_option(prefix + "draft_corpus",
                        &s->draft_corpus,
                        "unigram, bigram: a text to learn from; default: what is served"));
  table.add(choice_option(prefix + "rejection_sample_method",
                          &s->rejection_sample_method,
                          {"auto", "standard", "block", "coupled"},
                          "how drafts are judged; auto = coupled with a seed, else block"));
  table.add(integer_option(prefix + "num_draft_candidates",
                           &s->num_draft_candidates,
                           1,
                           256,
                           "entries of the draft's distribution that are kept"));
  table.add(flag_option(prefix + "use_heterogeneous_vocab",
                        &s->use_heterogeneous_vocab,
                        "translate for a draft with another tokenizer"));
  table.add(text_option(prefix + "draft_listen",
                        &s->draft_listen,
                        "HOST:PORT where drafts attach over TCP (outrider draft)"),
            {"--draft-listen"});
  table.add(secret_option(
      text_option("draft_key",
                  &c->draft_key,
                  "key of the job and of drafts that attach; without one only on loopback")));
}

void add_server_rows(Table& table, RunConfig* c) {
  table.group = "Server";
  table.add(text_option("host", &c->host, "address to listen on"));
  table.add(integer_option("port", &c->port, 0, 65535, "port to listen on; 0 = any free one"));
  table.add(path_option("uds", &c->uds, "Unix socket to listen on, instead of host and port"));
  table.add(
      path_option("ssl_certfile", &c->ssl_certfile, "PEM file of a certificate and its chain: TLS"),
      {"--ssl-cert-file"});
  table.add(
      path_option("ssl_keyfile", &c->ssl_keyfile, "PEM file of its key; default: ssl_certfile"),
      {"--ssl-key-file"});
  table.add(
      text_option(
          "root_path", &c->root_path, "path before all others, as a proxy may leave it: /llm"),
      {"--api-prefix"});
  table.add(secret_option(list_option(
      "api_key", &c->api_keys, "key that requests must carry; may be given several times")));
  table.add(path_option("api_key_file", &c->api_key_file, "file of more keys, one a line"));
  table.add(
      list_option("allowed_origins",
                  &c->allowed_origins,
                  "other origins whose browser pages may call, or *; may be given several times"));
  table.add(list_option("allowed_methods",
                        &c->allowed_methods,
                        "what such pages may send, or *; as allowed_origins"));
  table.add(list_option(
      "allowed_headers", &c->allowed_headers, "headers of theirs, or *; as allowed_origins"));
  table.add(flag_option("allow_credentials",
                        &c->allow_credentials,
                        "such pages may send cookies, which a proxy may ask for"));
  table.add(flag_option("webui", &c->webui, "a chat page at /, without the API key"));
  table.add(path_option(
      "batch_dir", &c->batch_dir, "folder of /v1/files and /v1/batches, which need it"));
  table.add(size_option(
      "max_batch_file_bytes", &c->max_batch_file_bytes, "largest file that may be sent there"));
  table.add(integer_option(
      "max_connections", &c->max_connections, 1, 65536, "HTTP connections at once before 503"));
  table.add(
      or_word(integer_option("max_connections_per_peer",
                             &c->max_connections_per_peer,
                             0,
                             65536,
                             "of them from one address but loopback; 0 = any; auto = 64 without "
                             "api_key, any with one"),
              "auto",
              &c->max_connections_per_peer,
              kAutoConnectionsPerPeer));
  table.add(flag_option("strict_params",
                        &c->strict_params,
                        "refuse requests with unknown fields instead of warning"));
  table.add(integer_option(
      "max_num_queued_reqs", &c->max_num_queued_reqs, 1, INT32_MAX, "waiting requests before 429"));
  table.add(with_old_key(integer_option("default_seed",
                                        &c->default_seed,
                                        -1,
                                        INT32_MAX,
                                        "requests without a seed get one made from this and their "
                                        "number; -1 = a random one"),
                         "seed"),
            {"--seed", "-s"});
  table.add(flag_option("structured_outputs_config.disable_any_whitespace",
                        &c->disable_any_whitespace,
                        "documents of a JSON schema have no whitespace that may be left out"));
  table.add(integer_option(
      "max_logprobs", &c->max_logprobs, 0, 256, "most logprobs a request may ask for"));
  table.add(number_option("shutdown_timeout",
                          &c->shutdown_timeout_s,
                          0,
                          86400,
                          "seconds that running requests get at SIGTERM"));
}

void add_log_rows(Table& table, RunConfig* c) {
  table.group = "Logs, metrics and traces";
  table.add(choice_option(
      "log_level", &c->log_level, {"debug", "info", "warning", "error"}, "what is logged"));
  table.add(number_option("log_stats_interval",
                          &c->log_stats_interval_s,
                          0,
                          86400,
                          "seconds between a server's lines about its load; 0 = none"));
  table.add(choice_option("per_request_spec_decode_metrics",
                          &c->per_request_spec_decode_metrics,
                          {"none", "summary", "detailed"},
                          "metrics.speculative_decoding in responses"));
  table.add(
      path_option("trace", &c->trace, "file for what all ranks did, in Chrome's trace format"));
}

}  // namespace

std::vector<Option> run_config_options(RunConfig* c) {
  Table table;
  add_model_rows(table, c);
  add_scheduling_rows(table, c);
  add_rank_rows(table, c);
  add_draft_rows(table, c);
  add_server_rows(table, c);
  add_log_rows(table, c);
  return table.rows;
}

bool LoadedConfig::is_given(const std::string& key) const {
  return std::any_of(
      given.begin(), given.end(), [&](const GivenValue& value) { return value.key == key; });
}

LoadedConfig load_config(const std::vector<std::string>& arguments,
                         const std::vector<const Option*>& extra,
                         const Words& words) {
  LoadedConfig loaded;
  std::string config_file;
  std::string speculative_json;  // vLLM's one-piece speculative config
  const std::vector<Option> rows = run_config_options(&loaded.config);
  const std::vector<const Option*> options = option_rows(rows);
  Table more{.rows = {}, .group = "Configuration"};
  more.add(path_option("config", &config_file, "YAML file with these settings"));
  more.add(text_option("speculative_config",
                       &speculative_json,
                       "all of speculative decoding's settings as one JSON object"));
  std::vector<const Option*> common = options;
  for (const Option& row : more.rows) common.push_back(&row);
  if (asks_for_help(arguments)) throw HelpAsked{help_of(extra), help_of(common)};
  const std::vector<Option> foreign_rows = foreign_options(&loaded.accepted);
  const std::vector<const Option*> foreign = option_rows(foreign_rows);
  std::vector<const Option*> typed = extra;
  typed.insert(typed.end(), common.begin(), common.end());
  typed.insert(typed.end(), foreign.begin(), foreign.end());
  std::vector<const Option*> written = options;  // in YAML
  written.insert(written.end(), foreign.begin(), foreign.end());

  ParsedArguments parsed = parse_arguments(arguments, typed);
  refuse_surplus_words(parsed.positional, words.most);
  if (words.are_model) {
    take_model(&parsed);
  } else {
    loaded.positional = std::move(parsed.positional);
  }
  std::vector<GivenValue> command_line;
  for (const GivenValue& given : parsed.values) {
    if (std::ranges::any_of(options, [&](const Option* row) { return row->key == given.key; })) {
      command_line.push_back(given);
    } else {
      apply_value(given, typed);
      loaded.given.push_back(given);
    }
  }
  const char* path = std::getenv("OUTRIDER_CONFIG");
  if (path != nullptr && config_file.empty()) config_file = path;
  if (!config_file.empty()) {
    const std::string text = read_text_file(config_file, kMaxFileBytes);
    apply_source(parse_yaml(text, "", config_file, written), written, &loaded);
  }
  apply_source(read_environment(options), options, &loaded);
  if (!speculative_json.empty()) {
    apply_source(
        parse_yaml(speculative_json, "speculative_config", "--speculative-config", written),
        written,
        &loaded);
  }
  apply_source(command_line, options, &loaded);
  // An 8B's step with 64 rows takes an H200 1.7 times as long as with one (docs/gpu.md).
  if (loaded.config.device == "cuda" && !loaded.is_given("max_num_seqs")) {
    loaded.config.max_num_seqs = 64;
  }
  set_log_level(log_level_from_name(loaded.config.log_level));
  if (!is_first_rank()) return loaded;
  for (const std::string& sentence : loaded.accepted) log_info("{}", sentence);
  return loaded;
}

std::string dump_config(const LoadedConfig& loaded) {
  RunConfig config = loaded.config;
  std::map<std::string, std::string> origins;
  for (const GivenValue& given : loaded.given) origins[given.key] = given.origin;
  std::string text;
  std::string open_group;
  for (const Option& option : run_config_options(&config)) {
    const size_t dot = option.key.find('.');
    const std::string group = dot == std::string::npos ? "" : option.key.substr(0, dot);
    if (group != open_group && !group.empty()) text += group + ":\n";
    open_group = group;
    const auto origin = origins.find(option.key);
    const std::string name =
        dot == std::string::npos ? option.key : "  " + option.key.substr(dot + 1);
    // A line that reads back as not given: a made-up key would be one. "" and [] hide nothing.
    const std::string value = option.get();
    const bool is_hidden = option.is_secret && value.size() > 2;
    text += fmt::format("{}{}: {}  # {}\n",
                        is_hidden ? "# " : "",
                        name,
                        is_hidden ? "hidden" : value,
                        origin == origins.end() ? "default" : origin->second);
  }
  return text;
}

}  // namespace outrider
