// See serve_json.h.
#include "runtime/commands/bench/serve/serve_json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

const char* count_name(ChunkCount count) {
  switch (count) {
    case ChunkCount::kTokenIds:
      return "token_ids";
    case ChunkCount::kRunningUsage:
      return "continuous_usage";
    case ChunkCount::kOnePerChunk:
      return "one_per_chunk";
  }
  return "unknown";
}

Json or_null(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

void put_latency(const char* name, const LatencyStats& stats, Json* out) {
  (*out)[fmt::format("mean_{}_ms", name)] = stats.mean;
  (*out)[fmt::format("median_{}_ms", name)] = stats.median;
  (*out)[fmt::format("std_{}_ms", name)] = stats.std;
  for (const auto& [percent, value] : stats.percentiles)
    (*out)[fmt::format("p{:g}_{}_ms", percent, name)] = value;
}

void put_speculation(const SpeculationCount& count, Json* out) {
  if (!count.known()) return;
  const auto drafted = static_cast<double>(count.num_draft_tokens);
  const auto accepted = static_cast<double>(count.num_accepted_tokens);
  (*out)["spec_decode_acceptance_rate"] = drafted > 0 ? 100 * accepted / drafted : 0;
  if (count.num_drafts >= 0) {
    (*out)["spec_decode_num_drafts"] = count.num_drafts;
    (*out)["spec_decode_acceptance_length"] =
        count.num_drafts > 0 ? 1 + accepted / static_cast<double>(count.num_drafts) : 1;
  }
  (*out)["spec_decode_draft_tokens"] = count.num_draft_tokens;
  (*out)["spec_decode_accepted_tokens"] = count.num_accepted_tokens;
}

Json load_json(const ServeLoad& load) {
  Json json;
  // JSON has no infinity; vLLM writes the word.
  json["request_rate"] = load.rate_per_s == 0          ? Json("trace")
                         : std::isinf(load.rate_per_s) ? Json("inf")
                                                       : Json(load.rate_per_s);
  json["max_concurrency"] = load.max_concurrency > 0 ? Json(load.max_concurrency) : Json(nullptr);
  return json;
}

Json figures_json(const ServeFindings& findings, const ServeJsonEntry& entry) {
  const ServeSummary& s = *entry.summary;
  Json json = load_json(entry.result->load);
  json["burstiness"] = findings.burstiness;
  if (!entry.result->variant.empty()) json["variant"] = entry.result->variant;
  json["num_prompts"] = s.completed + s.failed;
  json["duration"] = s.duration_s;
  json["completed"] = s.completed;
  json["failed"] = s.failed;
  json["failures"] = s.failures;
  json["total_input_tokens"] = s.total_input;
  json["total_output_tokens"] = s.total_output;
  json["request_throughput"] = s.request_throughput;
  json["request_goodput"] = or_null(s.request_goodput);
  json["output_throughput"] = s.output_throughput;
  json["total_token_throughput"] = s.total_token_throughput;
  json["max_output_tokens_per_s"] = s.max_output_tokens_per_s;
  json["max_concurrent_requests"] = s.max_concurrent_requests;
  put_latency("ttft", s.ttft, &json);
  put_latency("tpot", s.tpot, &json);
  put_latency("itl", s.itl, &json);
  put_latency("icl", s.icl, &json);
  put_latency("e2el", s.e2el, &json);
  put_latency("client_queue_time", s.queue, &json);
  put_latency("send_lateness", s.lateness, &json);
  json["finish_reasons"] = s.finish_reasons;
  json["num_chunks"] = s.num_chunks;
  json["num_answers_with_usage"] = s.num_usage;
  Json counts = Json::object();
  for (const auto& [count, number] : s.count_by) counts[count_name(count)] = number;
  json["tokens_of_chunks_counted_by"] = counts;
  put_speculation(entry.speculation, &json);
  return json;
}

Json request_json(const RequestRecord& record, size_t block) {
  Json json = {{"block", block},
               {"scheduled_s", record.scheduled_s},
               {"sent_s", record.sent_s},
               {"end_s", record.end_s},
               {"input_len", record.input_len},
               {"max_tokens", record.output_len},
               {"prompt_tokens", record.prompt_tokens},
               {"usage_tokens", record.usage_tokens},
               {"finish_reason", record.finish_reason}};
  if (record.slot_free_s > record.scheduled_s) json["slot_free_s"] = record.slot_free_s;
  Json chunks = Json::array();
  for (const StreamChunk& chunk : record.chunks)
    chunks.push_back(Json::array({chunk.time_s, chunk.num_tokens}));
  json["chunks"] = std::move(chunks);
  json["last_choice_s"] = record.last_choice_s;
  if (record.speculation.known()) {
    json["num_draft_tokens"] = record.speculation.num_draft_tokens;
    json["num_accepted_tokens"] = record.speculation.num_accepted_tokens;
  }
  if (record.failure != ServeFailure::kNone) {
    json["failure"] = failure_name(record);
    json["error"] = record.error;
  }
  return json;
}

// vLLM's arrays: one element per request in order, seconds; 0, empty or "" where there is none.
void put_arrays(const ServeResult& result, Json* out) {
  Json input_lens = Json::array(), output_lens = Json::array(), ttfts = Json::array();
  Json itls = Json::array(), latencies = Json::array(), start_times = Json::array();
  Json errors = Json::array();
  for (const auto& run : result.runs) {
    for (const RequestRecord& record : run) {
      const bool ok = record.failure == ServeFailure::kNone;
      const RequestLatency latency = ok ? latency_of(record) : RequestLatency{};
      input_lens.push_back(record.prompt_tokens >= 0 ? record.prompt_tokens : record.input_len);
      output_lens.push_back(latency.output_tokens);
      ttfts.push_back(latency.ttft.value_or(0));
      itls.push_back(latency.itl);
      latencies.push_back(latency.e2el);
      start_times.push_back(record.sent_s);
      errors.push_back(record.error);
    }
  }
  (*out)["input_lens"] = std::move(input_lens);
  (*out)["output_lens"] = std::move(output_lens);
  (*out)["ttfts"] = std::move(ttfts);
  (*out)["itls"] = std::move(itls);
  (*out)["latencies"] = std::move(latencies);
  (*out)["start_times"] = std::move(start_times);
  (*out)["errors"] = std::move(errors);
}

}  // namespace

std::string serve_details_json(const ServeFindings& findings,
                               const std::vector<ServeJsonEntry>& entries) {
  Json json = {{"backend", "openai"}, {"model_id", findings.model}, {"server", findings.server}};
  if (entries.size() == 1) {
    json.update(figures_json(findings, entries[0]));
    put_arrays(*entries[0].result, &json);
  }
  json["stopped_by_signal"] = findings.stopped;
  Json results = Json::array();
  for (const ServeJsonEntry& entry : entries) {
    Json result = figures_json(findings, entry);
    Json requests = Json::array();
    for (size_t block = 0; block < entry.result->runs.size(); ++block) {
      for (const RequestRecord& record : entry.result->runs[block])
        requests.push_back(request_json(record, block));
    }
    result["requests"] = std::move(requests);
    results.push_back(std::move(result));
  }
  json["results"] = std::move(results);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace outrider
