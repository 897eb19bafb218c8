// See batch_record.h.
#include "http/batches/batch_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "http/batches/file_store.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/files/json_gate.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxRecordBytes = 4u << 20;

struct StatusNames {
  const char* status;
  const char* since;
};
constexpr StatusNames kNames[kNumBatchStatuses] = {{"validating", "created_at"},
                                                   {"failed", "failed_at"},
                                                   {"in_progress", "in_progress_at"},
                                                   {"finalizing", "finalizing_at"},
                                                   {"completed", "completed_at"},
                                                   {"cancelling", "cancelling_at"},
                                                   {"cancelled", "cancelled_at"}};

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string text_or_empty(const Json& json) {
  return json.is_null() ? "" : json.get<std::string>();
}

Json faults_json(const std::vector<BatchLineFault>& faults) {
  if (faults.empty()) return nullptr;
  Json data = Json::array();
  for (const BatchLineFault& fault : faults) {
    data.push_back({{"code", fault.code.empty() ? "invalid_request" : fault.code},
                    {"line", fault.number == 0 ? Json(nullptr) : Json(fault.number)},
                    {"message", fault.message},
                    {"param", or_null(fault.param)}});
  }
  return {{"object", "list"}, {"data", std::move(data)}};
}

BatchRecord record_of(const Json& json) {
  BatchRecord record;
  record.id = json.at("id").get<std::string>();
  record.endpoint = json.at("endpoint").get<std::string>();
  record.input_file_id = json.at("input_file_id").get<std::string>();
  record.output_file_id = text_or_empty(json.at("output_file_id"));
  record.error_file_id = text_or_empty(json.at("error_file_id"));
  record.metadata = json.at("metadata").dump();
  const auto status = json.at("status").get<std::string>();
  const auto* found = std::ranges::find(kNames, status, &StatusNames::status);
  if (found == std::end(kNames)) throw Error("has an unknown status");
  record.status = static_cast<BatchStatus>(found - std::begin(kNames));
  for (size_t i = 0; i < kNumBatchStatuses; ++i) {
    const Json& since = json.at(kNames[i].since);
    record.since[i] = since.is_null() ? 0 : since.get<int64_t>();
  }
  const Json& counts = json.at("request_counts");
  record.num_lines = counts.at("total").get<int64_t>();
  record.num_completed = counts.at("completed").get<int64_t>();
  record.num_failed = counts.at("failed").get<int64_t>();
  const Json& errors = json.at("errors");
  for (const Json& fault : errors.is_null() ? Json::array() : errors.at("data")) {
    record.faults.push_back({fault.at("line").is_null() ? 0 : fault.at("line").get<int>(),
                             fault.at("message").get<std::string>(),
                             text_or_empty(fault.at("param")),
                             fault.at("code").get<std::string>()});
  }
  return record;
}

}  // namespace

void BatchRecord::enter(BatchStatus next) {
  status = next;
  since[static_cast<size_t>(next)] = unix_seconds_now();
}

std::string batch_json(const BatchRecord& record) {
  Json json = {{"id", record.id},
               {"object", "batch"},
               {"endpoint", record.endpoint},
               {"errors", faults_json(record.faults)},
               {"input_file_id", record.input_file_id},
               {"completion_window", "24h"},
               {"status", kNames[static_cast<size_t>(record.status)].status},
               {"output_file_id", or_null(record.output_file_id)},
               {"error_file_id", or_null(record.error_file_id)}};
  for (size_t i = 0; i < kNumBatchStatuses; ++i)
    json[kNames[i].since] = record.since[i] == 0 ? Json(nullptr) : Json(record.since[i]);
  json["expires_at"] = json["expired_at"] = nullptr;
  json["request_counts"] = {{"total", record.num_lines},
                            {"completed", record.num_completed},
                            {"failed", record.num_failed}};
  json["metadata"] = Json::parse(record.metadata);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

BatchRecord read_batch_record(const std::filesystem::path& path) {
  const std::string text = read_regular_file(path, kMaxRecordBytes);
  const std::string fault = json_fault(text, {});
  if (!fault.empty()) throw Error(fmt::format("{}: {}", path.string(), fault));
  try {
    return record_of(Json::parse(text));
  } catch (const std::exception& error) {
    throw Error(fmt::format("{}: is no batch of ours: {}", path.string(), error.what()));
  }
}

}  // namespace outrider
