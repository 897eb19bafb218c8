// Everything a run can be told, as plain values with their defaults. config.h fills it from the
// command line, the environment and YAML; every rank holds the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

constexpr int32_t kAutoDraftLen = 0;          // as num_speculative_tokens
constexpr int32_t kLongestAutoDraftLen = 16;  // what memory and buffers are made for then

// As max_connections_per_peer: 64 without api_key, any number with one, which a proxy needs.
constexpr int32_t kAutoConnectionsPerPeer = -1;

struct SpeculativeConfig {
  // The longest draft that any round will verify.
  int32_t longest_draft_len() const {
    return num_speculative_tokens == kAutoDraftLen ? kLongestAutoDraftLen : num_speculative_tokens;
  }

  // auto, draft_model, ngram, unigram, bigram, grammar, none; auto = draft_model when model is set
  std::string method = "auto";
  std::string model;                  // the draft's folder, or "embedded"
  std::string quantization = "none";  // of the draft's weights, as below
  std::string device = "auto";        // auto = the target's
  // auto: each round as many for each sequence as bring most tokens per second, maybe none
  int32_t num_speculative_tokens = kAutoDraftLen;
  std::string async_drafting =
      "auto";                    // auto, off, chain, cache: what the draft does while a round runs
  std::string backup = "ngram";  // ngram, none: who drafts where a draft model's block is missing
  int32_t prompt_lookup_max = 4;
  int32_t prompt_lookup_min = 2;
  std::string draft_corpus;  // unigram, bigram: the text they learn; empty = what is served
  std::string rejection_sample_method = "auto";  // auto, standard, block, coupled
  bool use_heterogeneous_vocab = false;          // a draft with another tokenizer is translated
  std::string draft_listen;  // HOST:PORT where drafts attach over TCP; empty = nowhere
  // Set by commands that are about the drafts, not about time: a round waits at least so long for a
  // block, however often one came late. Not an option: a server must not wait for its draft.
  double draft_patience_s = 0;
  int32_t num_draft_candidates = 16;  // entries of the draft's distribution that are kept and sent
};

struct RunConfig {
  std::string model = "embedded";         // a Hugging Face folder, or "embedded"
  std::string served_model_name;          // empty = the model's folder name
  std::string chat_template;              // a file; empty = the model's
  std::string tool_call_parser = "auto";  // auto = by the chat template
  std::string reasoning_parser = "auto";  // none = reasoning is text as the rest
  // What float weights become at load: none, int8 (on CPUs), fp8 (on GPUs; on
  // CPUs the same numbers in float32, for comparisons).
  std::string quantization = "none";
  std::string generation_config = "auto";  // auto = the model's sampling defaults, vllm = none
  int32_t tensor_parallel_size = 0;  // 0 = under MPI all ranks but the draft's, in one process 1
  int32_t max_model_len = 0;         // 0 = the model's
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  std::string scheduling_policy = "priority";  // fcfs; priority = by the requests' priority
  int32_t priority_aging_rounds = 256;         // rounds of waiting that make up for one of priority
  // max_utilization; guaranteed_no_evict = let in only what can never be preempted
  std::string capacity_scheduler_policy = "max_utilization";
  int64_t kv_cache_memory_bytes =
      0;                // per target rank; 0 = enough for max_num_seqs full contexts, at most 4 GiB
  int32_t threads = 0;  // per rank; 0 = the host's cores divided among its ranks
  // none, auto, or CPUs: "0-15" divided among the host's target ranks, "0-7|8-15" one list a rank
  std::string cpu_bind = "auto";
  std::string isa = "auto";  // auto, scalar, avx2, avx512
  // auto, float32, bfloat16: products with bf16 weights round their activations
  std::string activation_dtype = "auto";
  std::string device = "cpu";           // cpu, cuda
  double gpu_memory_utilization = 0.9;  // of a GPU's memory, by all ranks of the job that share it
  // auto, float32, bfloat16, int8; auto = as activations
  std::string kv_cache_dtype = "auto";
  bool enforce_eager = false;  // no recorded graphs on GPUs
  int32_t cuda_device = -1;    // -1 = by the rank's place on its host
  // auto, exchange, hierarchical, nccl, staged: how the target ranks' GPUs sum
  // (runtime/comm/device/device_sums.h)
  std::string device_sums = "auto";
  std::string numerics = "fast";  // fast; strict = the same bits on 1, 2, 4 and 8 target ranks
  SpeculativeConfig speculative;
  std::string
      draft_key;  // that drafts over TCP must know; empty = any may attach, on loopback only

  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string uds;           // a Unix socket's path instead of host and port
  std::string ssl_certfile;  // PEM; either one = TLS
  std::string ssl_keyfile;
  std::string root_path;  // that a proxy leaves before the paths
  std::vector<std::string> api_keys;
  std::string api_key_file;  // more of them, one a line
  // CORS; "*" = any
  std::vector<std::string> allowed_origins;
  std::vector<std::string> allowed_methods = {"GET", "POST"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;
  bool webui = true;      // the chat page at "/"
  std::string batch_dir;  // of /v1/files and /v1/batches; empty = there are none
  int64_t max_batch_file_bytes = 64LL << 20;  // of one that is sent there
  int32_t max_connections = 1024;
  int32_t max_connections_per_peer = kAutoConnectionsPerPeer;  // 0 = any
  bool disable_any_whitespace = false;                         // in documents of a JSON schema
  bool strict_params = false;                                  // unknown fields are a 400
  int32_t max_num_queued_reqs = 256;
  int32_t default_seed = -1;  // requests without a seed get one made from it; -1 = a random one
  int32_t max_logprobs = 20;
  double shutdown_timeout_s = 30;
  double watchdog_timeout_s = 5;  // until a target rank that is silent ends the job; 0 = never
  int32_t watchdog_port = 0;      // UDP, of rank 0, the others' follow; 0 = any free ones
  std::string log_level = "info";
  double log_stats_interval_s = 10;  // 0 = no lines
  std::string trace;  // file that rank 0 writes what all ranks did to; empty = nothing is recorded
  // none, summary, detailed: figures of speculation in each response
  std::string per_request_spec_decode_metrics = "none";
};

}  // namespace outrider
