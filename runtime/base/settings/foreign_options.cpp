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

struct ForeignOption {
  const char* key;
  const char* aliases;  // as typed, separated by spaces
  Takes takes;
  const char* harmless;  // values that change nothing, separated by spaces; "*" = all
  const char* why;       // of both: that it changes nothing, and that another value will not do
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
    {"trust_remote_code", "", Takes::kFlag, kAll, "no code of a model is ever run"},
    {"load_format", "", Takes::kValue, "auto safetensors", "weights are read from safetensors"},
    {"tokenizer_mode", "", Takes::kValue, "auto hf", "tokenizer.json is read"},
    {"tokenizer", "", Takes::kValue, "", "the tokenizer is the one in the model's folder"},
    {"revision", "", Takes::kValue, "", kNoDownload},
    {"tokenizer_revision", "", Takes::kValue, "", kNoDownload},
    {"code_revision", "", Takes::kValue, kAll, "no code of a model is ever run"},
    {"download_dir", "", Takes::kValue, kAll, kNoDownload},
    {"hf_token", "", Takes::kValue, kAll, kNoDownload},
    {"model_impl", "", Takes::kValue, "auto vllm", "there is one implementation of each model"},
    {"runner", "", Takes::kValue, "auto generate", "models generate text"},
    {"task", "", Takes::kValue, "auto generate", "models generate text"},
    {"convert", "", Takes::kValue, "auto none", "models generate text"},
    {"enable_chunked_prefill", "", Takes::kFlag, kFlags, "long prompts are always cut into chunks"},
    {"max_num_partial_prefills", "", Takes::kValue, kAll, kRows},
    {"max_long_partial_prefills", "", Takes::kValue, kAll, kRows},
    {"long_prefill_token_threshold", "", Takes::kValue, kAll, kRows},
    {"async_scheduling", "", Takes::kFlag, kAll, "it would change times only, never an answer"},
    {"num_scheduler_steps", "", Takes::kValue, "1", "each round is planned by itself"},
    {"use_v2_block_manager", "", Takes::kFlag, kFlags, "there is one block manager"},
    {"swap_space", "", Takes::kValue, kAll, "preempted text is computed again, not swapped"},
    {"cpu_offload_gb", "", Takes::kValue, "0", "weights are never offloaded"},
    {"pipeline_parallel_size", "-pp", Takes::kValue, "1", kRanks},
    {"data_parallel_size", "-dp", Takes::kValue, "1", kRanks},
    {"decode_context_parallel_size", "-dcp", Takes::kValue, "1", kRanks},
    {"distributed_executor_backend",
     "",
     Takes::kValue,
     "mp uni external_launcher",
     "several ranks are started with mpirun"},
    {"disable_custom_all_reduce", "", Takes::kFlag, "false", "--device-sums nccl does that"},
    {"max_parallel_loading_workers", "", Takes::kValue, kAll, "each rank reads its own part"},
    {"compilation_config", "", Takes::kValue, kAll, "kernels are compiled in advance"},
    {"max_seq_len_to_capture", "", Takes::kValue, kAll, "graphs are recorded as steps need them"},
    {"disable_log_requests", "", Takes::kFlag, kAll, "what requests say is never logged"},
    {"enable_log_requests", "", Takes::kFlag, "false", "what requests say is never logged"},
    {"max_log_len", "", Takes::kValue, kAll, "what requests say is never logged"},
    {"disable_log_stats", "", Takes::kFlag, "false", "--log-stats-interval 0 does that"},
    {"show_hidden_metrics_for_version", "", Takes::kValue, kAll, "no metric is hidden"},
    {"disable_uvicorn_access_log", "", Takes::kFlag, "false", "--log-level warning does that"},
    {"uvicorn_log_level", "", Takes::kValue, kAll, "the log's level is --log-level"},
    {"disable_frontend_multiprocessing", "", Takes::kFlag, kAll, kServerThreads},
    {"api_server_count", "", Takes::kValue, kAll, kServerThreads},
    {"ssl_cert_reqs", "", Takes::kValue, "0", kNoClientCerts},
    {"ssl_ca_certs", "", Takes::kValue, "", kNoClientCerts},
    {"ssl_ciphers", "", Takes::kValue, "", "they are OpenSSL's, of TLS 1.2 and later"},
    {"enable_ssl_refresh", "", Takes::kFlag, "false", "a new certificate needs a restart"},
    {"enable_server_load_tracking", "", Takes::kFlag, kFlags, "/load always counts"},
    {"enable_request_id_headers", "", Takes::kFlag, kFlags, "answers always have X-Request-Id"},
    {"enable_prompt_tokens_details",
     "",
     Takes::kFlag,
     kFlags,
     "usage always tells of cached tokens"},
    {"enable_auto_tool_choice",
     "",
     Takes::kFlag,
     kFlags,
     "answers to requests with tools are always searched for calls"},
    {"exclude_tools_when_tool_choice_none",
     "",
     Takes::kFlag,
     "false",
     "the template decides what stands in the prompt"},
    {"reasoning_format",
     "",
     Takes::kValue,
     "auto deepseek",
     "--reasoning-parser says how reasoning is marked"},
    {"chat_template_content_format",
     "",
     Takes::kValue,
     "auto",
     "the parts of a message reach the template as the template asks"},
    {"response_role", "", Takes::kValue, "assistant", "answers are the assistant's"},
    {"speculative_config.draft_tensor_parallel_size",
     "",
     Takes::kValue,
     "1",
     "a draft model has one rank"},
    // llama-server's
    {"jinja", "", Takes::kFlag, kFlags, "chat templates are always Jinja"},
    {"gpu_layers", "-ngl --n-gpu-layers", Takes::kValue, kAll, "--device cuda puts all on GPUs"},
    {"gpu_layers_draft",
     "-ngld --n-gpu-layers-draft",
     Takes::kValue,
     kAll,
     "--speculative-config.device says where a draft computes"},
    {"flash_attn", "-fa", Takes::kFlagOrValue, "true on off auto", "attention has one kernel"},
    {"mmap", "", Takes::kFlag, kAll, "each thread reads the weights that it will use"},
    {"mlock", "", Takes::kFlag, kAll, "weights are in memory of their own"},
    {"batch_size", "-b", Takes::kValue, kAll, kRows},
    {"ubatch_size", "-ub", Takes::kValue, kAll, kRows},
    {"threads_batch", "-tb", Takes::kValue, kAll, "--threads are for all steps"},
    {"threads_http", "", Takes::kValue, kAll, kServerThreads},
    {"cont_batching", "-cb", Takes::kFlag, kFlags, "batching is always continuous"},
    {"context_shift", "", Takes::kFlag, "false", "a full context ends the answer"},
    {"kv_unified", "-kvu", Takes::kFlag, kAll, "all sequences share one pool of KV blocks"},
    {"cache_type_k", "-ctk", Takes::kValue, "f16 f32", kKvType},
    {"cache_type_v", "-ctv", Takes::kValue, "f16 f32", kKvType},
    {"warmup", "", Takes::kFlag, kAll, "there is nothing to warm up"},
    {"metrics", "", Takes::kFlag, kFlags, "/metrics is always there"},
    {"numa", "", Takes::kValue, kAll, "--cpu-bind places the threads"},
    {"prio", "", Takes::kValue, kAll, "threads keep the process's priority"},
    {"poll", "", Takes::kValue, kAll, "waiting threads sleep after a moment"},
    {"n_predict", "-n --predict", Takes::kValue, "-1", "an answer's length is its max_tokens"},
    {"temp", "--temperature", Takes::kValue, "", kDefaults},
    {"top_k", "", Takes::kValue, "", kDefaults},
    {"top_p", "", Takes::kValue, "", kDefaults},
    {"min_p", "", Takes::kValue, "", kDefaults},
    {"repeat_penalty", "", Takes::kValue, "", kDefaults},
    {"hf_repo", "-hf -hfr", Takes::kValue, "", kNoDownload},
    {"draft_min", "--draft-n-min", Takes::kValue, kAll, kDraftLength},
    {"draft_p_min", "", Takes::kValue, kAll, kDraftLength},
    {"ctx_size_draft", "-cd", Takes::kValue, kAll, "a draft has the target's context"},
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
  if (foreign.takes != Takes::kValue) row.value.clear();
  if (foreign.takes == Takes::kFlagOrValue) row.choices = harmless;
  const bool is_flag = foreign.takes == Takes::kFlag;
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
