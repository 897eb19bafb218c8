// What can be set on the HTTP side. Filled by the serve command from its configuration; read-only
// afterwards.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace outrider {

// Against clients that send too much or too slowly; checked before anything is parsed.
struct ConnectionLimits {
  size_t max_request_line_bytes = 8u << 10;
  size_t max_head_bytes = 32u << 10;
  size_t max_headers = 64;
  size_t max_body_bytes = 8u << 20;
  size_t max_upload_bytes = 0;         // of the body that brings a file; 0 = there are none
  size_t min_body_bytes_per_s = 1024;  // after body_grace
  std::chrono::milliseconds head_timeout{5000};
  std::chrono::milliseconds body_timeout{30000};
  std::chrono::milliseconds upload_timeout{600000};
  std::chrono::milliseconds body_grace{2000};
  std::chrono::milliseconds idle_timeout{15000};   // between requests of one connection
  std::chrono::milliseconds write_timeout{30000};  // without progress
  size_t max_requests_per_connection = 100;
  size_t max_connections = 1024;
  size_t max_connections_per_peer = 0;  // 0 = any; loopback peers are exempt
  // Bodies over 64 KiB together, until their requests are read; beyond it 503. What a body takes
  // while it is read can be 40 times its size.
  size_t max_large_body_bytes_in_flight = 64u << 20;
};

// What one call may ask for.
struct CallLimits {
  int32_t max_choices = 16;  // max_num_seqs
  int32_t max_prompts = 1024;
  int32_t max_logprobs = 20;
  size_t max_stop_strings = 16;
  size_t max_stop_bytes = 256;
  size_t max_logit_bias = 1024;
  size_t max_stop_token_ids = 1024;
  size_t max_allowed_token_ids = 8192;
  size_t max_bad_words = 256;
  size_t max_bad_word_bytes = 256;
  size_t max_messages = 1024;
  size_t max_grammar_bytes = 256u << 10;
  std::chrono::milliseconds max_grammar_compile{20000};
  // Of answers that are sent in one piece and list log-probabilities; beyond it 503.
  size_t max_answer_bytes_in_flight = 1u << 30;
  bool disable_any_whitespace = false;  // in documents of a JSON schema, unless a request says
  bool strict_params = false;           // unknown fields are a 400 instead of being ignored
};

// metrics.speculative_decoding of responses: never, sums and histograms, also each round.
enum class SpecDecodeMetrics : uint8_t { kNone, kSummary, kDetailed };

// Pages of other origins in browsers. "*" in a list = any.
struct CorsOptions {
  std::vector<std::string> allowed_origins;  // empty = none: same origin only
  std::vector<std::string> allowed_methods = {"GET", "POST"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;
};

inline constexpr int kRetryAfterS = 1;  // with 429 and 503

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                    // 0 = any free port
  std::string uds;                    // a Unix socket's path instead of host and port
  std::string ssl_certfile;           // either one = TLS
  std::string ssl_keyfile;            // empty = in ssl_certfile
  std::string root_path;              // "/llm": paths may begin with it; empty = none
  std::vector<std::string> api_keys;  // empty = open
  CorsOptions cors;
  bool webui = true;  // the chat page at "/"
  ConnectionLimits connection;
  CallLimits call;
  std::optional<uint64_t> default_seed;                // of calls that send none, with their number
  std::chrono::milliseconds sse_ping_interval{15000};  // 0 = off
  std::chrono::milliseconds stall_after{30000};  // /health is 503 when no round ends for so long
  SpecDecodeMetrics per_request_spec_decode_metrics = SpecDecodeMetrics::kNone;
  std::vector<std::string> metrics_namespaces = {"outrider", "vllm"};
  std::vector<std::pair<std::string, std::string>> build;  // what /version says: (name, value)

  bool has_tls() const { return !ssl_certfile.empty() || !ssl_keyfile.empty(); }
};

}  // namespace outrider
