// See foreign_options.h.
#include "runtime/base/settings/foreign_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "runtime/base/error.h"

namespace outrider {
namespace {

// What a row takes on the command line.
enum class Takes : uint8_t {
  kFlag,
  kFlagOrValue,  // a flag that one of its harmless values may follow
  kValue,
};
using enum Takes;

struct ForeignOption {
  const char* key;
  Takes takes;
  const char* harmless;      // values that change nothing, separated by spaces; "*" = all
  const char* why;           // of both: that it changes nothing, and that another value will not do
  const char* aliases = "";  // as typed, separated by spaces
};

constexpr const char* kNoDownload =
    "nothing is downloaded; --model is a folder, or NAME@REVISION of the cache";
constexpr const char* kRanks = "target ranks are --tensor-parallel-size, one server is one replica";
constexpr const char* kServerThreads = "each connection has a thread of its own";
constexpr const char* kRows = "rows of a round are --max-num-batched-tokens";
constexpr const char* kDefaults = "sampling defaults are the model's generation_config.json";
constexpr const char* kDraftLength = "a draft is as long as measured times and acceptance ask for";
constexpr const char* kKvType =
    "--kv-cache-dtype bfloat16 or int8 (as q8_0) is the type of keys and values alike";
constexpr const char* kNoClientCerts = "clients are not asked for certificates";
constexpr const char* kFlags = "true";
constexpr const char* kAll = "*";

constexpr ForeignOption kForeignOptions[] = {
    // vLLM's
    {"trust_remote_code", kFlag, kAll, "no code of a model is ever run"},
    {"load_format", kValue, "auto safetensors", "weights are read from safetensors"},
    {"tokenizer_mode", kValue, "auto hf", "tokenizer.json is read"},
    {"tokenizer", kValue, "", "the tokenizer is the one in the model's folder"},
    {"revision", kValue, "", kNoDownload},
    {"tokenizer_revision", kValue, "", kNoDownload},
    {"code_revision", kValue, kAll, "no code of a model is ever run"},
    {"download_dir", kValue, kAll, kNoDownload},
    {"hf_token", kValue, kAll, kNoDownload},
    {"model_impl", kValue, "auto vllm", "there is one implementation of each model"},
    {"runner", kValue, "auto generate", "models generate text"},
    {"task", kValue, "auto generate", "models generate text"},
    {"convert", kValue, "auto none", "models generate text"},
    {"enable_chunked_prefill", kFlag, kFlags, "long prompts are always cut into chunks"},
    {"max_num_partial_prefills", kValue, kAll, kRows},
    {"max_long_partial_prefills", kValue, kAll, kRows},
    {"long_prefill_token_threshold", kValue, kAll, kRows},
    {"async_scheduling", kFlag, kAll, "it would change times only, never an answer"},
    {"num_scheduler_steps", kValue, "1", "each round is planned by itself"},
    {"use_v2_block_manager", kFlag, kFlags, "there is one block manager"},
    {"swap_space", kValue, kAll, "preempted text is computed again, not swapped"},
    {"cpu_offload_gb", kValue, "0", "weights are never offloaded"},
    {"pipeline_parallel_size", kValue, "1", kRanks, "-pp"},
    {"data_parallel_size", kValue, "1", kRanks, "-dp"},
    {"decode_context_parallel_size", kValue, "1", kRanks, "-dcp"},
    {"distributed_executor_backend",
     kValue,
     "mp uni external_launcher",
     "several ranks are started with mpirun"},
    {"disable_custom_all_reduce", kFlag, "false", "--device-sums nccl does that"},
    {"max_parallel_loading_workers", kValue, kAll, "each rank reads its own part"},
    {"compilation_config", kValue, kAll, "kernels are compiled in advance"},
    {"max_seq_len_to_capture", kValue, kAll, "graphs are recorded as steps need them"},
    {"disable_log_requests", kFlag, kAll, "what requests say is never logged"},
    {"enable_log_requests", kFlag, "false", "what requests say is never logged"},
    {"max_log_len", kValue, kAll, "what requests say is never logged"},
    {"disable_log_stats", kFlag, "false", "--log-stats-interval 0 does that"},
    {"show_hidden_metrics_for_version", kValue, kAll, "no metric is hidden"},
    {"disable_uvicorn_access_log", kFlag, "false", "--log-level warning does that"},
    {"uvicorn_log_level", kValue, kAll, "the log's level is --log-level"},
    {"disable_frontend_multiprocessing", kFlag, kAll, kServerThreads},
    {"api_server_count", kValue, kAll, kServerThreads},
    {"ssl_cert_reqs", kValue, "0", kNoClientCerts},
    {"ssl_ca_certs", kValue, "", kNoClientCerts},
    {"ssl_ciphers", kValue, "", "they are OpenSSL's, of TLS 1.2 and later"},
    {"enable_ssl_refresh", kFlag, "false", "a new certificate needs a restart"},
    {"enable_server_load_tracking", kFlag, kFlags, "/load always counts"},
    {"enable_request_id_headers", kFlag, kFlags, "answers always have X-Request-Id"},
    {"enable_prompt_tokens_details", kFlag, kFlags, "usage always tells of cached tokens"},
    {"enable_auto_tool_choice",
     kFlag,
     kFlags,
     "answers to requests with tools are always searched for calls"},
    {"exclude_tools_when_tool_choice_none",
     kFlag,
     "false",
     "the template decides what stands in the prompt"},
    {"reasoning_format",
     kValue,
     "auto deepseek",
     "--reasoning-parser says how reasoning is marked"},
    {"chat_template_content_format",
     kValue,
     "auto",
     "the parts of a message reach the template as the template asks"},
    {"response_role", kValue, "assistant", "answers are the assistant's"},
    {"speculative_config.draft_tensor_parallel_size", kValue, "1", "a draft model has one rank"},
    // llama-server's
    {"jinja", kFlag, kFlags, "chat templates are always Jinja"},
    {"gpu_layers", kValue, kAll, "--device cuda puts all on GPUs", "-ngl --n-gpu-layers"},
    {"gpu_layers_draft",
     kValue,
     kAll,
     "--speculative-config.device says where a draft computes",
     "-ngld --n-gpu-layers-draft"},
    {"flash_attn", kFlagOrValue, "true on off auto", "attention has one kernel", "-fa"},
    {"mmap", kFlag, kAll, "each thread reads the weights that it will use"},
    {"mlock", kFlag, kAll, "weights are in memory of their own"},
    {"batch_size", kValue, kAll, kRows, "-b"},
    {"ubatch_size", kValue, kAll, kRows, "-ub"},
    {"threads_batch", kValue, kAll, "--threads are for all steps", "-tb"},
    {"threads_http", kValue, kAll, kServerThreads},
    {"cont_batching", kFlag, kFlags, "batching is always continuous", "-cb"},
    {"context_shift", kFlag, "false", "a full context ends the answer"},
    {"kv_unified", kFlag, kAll, "all sequences share one pool of KV blocks", "-kvu"},
    {"cache_type_k", kValue, "f16 f32", kKvType, "-ctk"},
    {"cache_type_v", kValue, "f16 f32", kKvType, "-ctv"},
    {"warmup", kFlag, kAll, "there is nothing to warm up"},
    {"metrics", kFlag, kFlags, "/metrics is always there"},
    {"numa", kValue, kAll, "--cpu-bind places the threads"},
    {"prio", kValue, kAll, "threads keep the process's priority"},
    {"poll", kValue, kAll, "waiting threads sleep after a moment"},
    {"n_predict", kValue, "-1", "an answer's length is its max_tokens", "-n --predict"},
    {"temp", kValue, "", kDefaults, "--temperature"},
    {"top_k", kValue, "", kDefaults},
    {"top_p", kValue, "", kDefaults},
    {"min_p", kValue, "", kDefaults},
    {"repeat_penalty", kValue, "", kDefaults},
    {"hf_repo", kValue, "", kNoDownload, "-hf -hfr"},
    {"draft_min", kValue, kAll, kDraftLength, "--draft-n-min"},
    {"draft_p_min", kValue, kAll, kDraftLength},
    {"ctx_size_draft", kValue, kAll, "a draft has the target's context", "-cd"},
};

std::vector<std::string> words_of(const char* text) {
  std::istringstream stream{text};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

std::string refusal(bool is_flag,
                    const std::string& value,
                    const std::vector<std::string>& harmless) {
  if (is_flag) return value == "true" ? "cannot be had: " : "cannot be turned off: ";
  if (harmless.empty()) return "cannot be set: ";
  return fmt::format("'{}' cannot be had, only {}: ", value, fmt::join(harmless, ", "));
}

Option row_of(const ForeignOption& foreign, std::vector<std::string>* accepted) {
  Option row;
  row.key = foreign.key;
  row.aliases = words_of(foreign.aliases);
  const std::vector<std::string> harmless = words_of(foreign.harmless);
  if (foreign.takes != kValue) row.value.clear();
  if (foreign.takes == kFlagOrValue) row.choices = harmless;
  const bool is_flag = foreign.takes == kFlag;
  row.set = [=](const std::string& text) {
    const bool takes_all = harmless == std::vector<std::string>{kAll};
    if (!takes_all && std::find(harmless.begin(), harmless.end(), text) == harmless.end())
      throw Error(refusal(is_flag, text, harmless) + foreign.why);
    const std::string value = text == "true" ? "" : " " + text;
    accepted->push_back(
        fmt::format("{}{} changes nothing here: {}", flag_of(foreign.key), value, foreign.why));
  };
  row.get = [] { return std::string(); };
  return row;
}

}  // namespace

std::vector<Option> foreign_options(std::vector<std::string>* accepted) {
  std::vector<Option> rows;
  for (const ForeignOption& foreign : kForeignOptions) rows.push_back(row_of(foreign, accepted));
  return rows;
}

}  // namespace outrider
