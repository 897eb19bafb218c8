// See serve_traces.h.
#include "runtime/commands/bench/serve/serve_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokens = 16 << 20;  // of one prompt or answer
constexpr size_t kMaxLineBytes = 4 << 20;
constexpr size_t kMaxLines = 10000000;
constexpr double kMaxSeconds = 100.0 * 366 * 86400;

bool is_int64(const Json& json) {
  return json.is_number_integer() &&
         !(json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX);
}

int32_t length_of(const Json& row, const char* name, int64_t least, const std::string& place) {
  const auto found = row.find(name);
  if (found == row.end()) throw Error(fmt::format("{}: there is no {}", place, name));
  if (!found->is_number_integer())
    throw Error(fmt::format("{}: {} must be an integer", place, name));
  if (!is_int64(*found)) throw Error(fmt::format("{}: {} is out of range", place, name));
  const auto length = found->get<int64_t>();
  if (length >= least && length <= kMaxTokens) return static_cast<int32_t>(length);
  throw Error(
      fmt::format("{}: {} is {}, must be {} to {}", place, name, length, least, kMaxTokens));
}

std::vector<int64_t> hash_ids_of(const Json& row, int32_t input_len, const std::string& place) {
  const auto found = row.find("hash_ids");
  if (found == row.end()) return {};
  if (!found->is_array()) throw Error(fmt::format("{}: hash_ids must be a list", place));
  const auto num_blocks =
      static_cast<size_t>((input_len + kTraceBlockTokens - 1) / kTraceBlockTokens);
  if (found->size() != num_blocks) {
    throw Error(fmt::format("{}: {} hash_ids, where a prompt of {} tokens has {} blocks of {}",
                            place,
                            found->size(),
                            input_len,
                            num_blocks,
                            kTraceBlockTokens));
  }
  std::vector<int64_t> ids;
  for (const Json& id : *found) {
    if (!is_int64(id)) throw Error(place + ": hash_ids must be integers");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

int32_t scaled_length(int32_t length, double scale) {
  const double scaled = std::round(length * scale);
  return static_cast<int32_t>(std::clamp(scaled, 1.0, static_cast<double>(kMaxTokens)));
}

}  // namespace

void for_each_line(std::string_view text,
                   const std::string& origin,
                   const std::function<void(std::string_view, const std::string& place)>& take) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const std::string place = fmt::format("{} line {}", origin, number);
    if (line.size() > kMaxLineBytes)
      throw Error(fmt::format("{}: longer than {} bytes", place, kMaxLineBytes));
    if (number > kMaxLines) throw Error(fmt::format("{}: more than {} lines", place, kMaxLines));
    if (!line.empty()) take(line, place);
  }
}

std::vector<TraceRow> parse_mooncake_trace(std::string_view text, const std::string& origin) {
  std::vector<TraceRow> rows;
  double first_s = 0;
  for_each_line(text, origin, [&](std::string_view line, const std::string& place) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) throw Error(place + ": not a JSON object");
    const auto time = row.find("timestamp");
    if (time == row.end() || !time->is_number())
      throw Error(place + ": timestamp must be a number of milliseconds");
    const double time_s = time->get<double>() / 1e3;
    if (rows.empty()) first_s = time_s;
    TraceRow out;
    out.arrival_s = time_s - first_s;
    if (!rows.empty() && !(out.arrival_s >= rows.back().arrival_s))
      throw Error(place + ": earlier than the line before");
    if (!(out.arrival_s <= kMaxSeconds)) throw Error(place + ": the time is out of range");
    out.input_len = length_of(row, "input_length", 1, place);
    out.output_len = length_of(row, "output_length", 0, place);
    out.hash_ids = hash_ids_of(row, out.input_len, place);
    rows.push_back(std::move(out));
  });
  if (rows.empty()) throw Error(fmt::format("{} has no requests", origin));
  return rows;
}

void scale_trace(double time_scale, double length_scale, std::vector<TraceRow>* rows) {
  for (TraceRow& row : *rows) {
    row.arrival_s *= time_scale;
    row.input_len = scaled_length(row.input_len, length_scale);
    row.output_len = scaled_length(row.output_len, length_scale);
  }
}

std::vector<PromptPiece> trace_pieces(const TraceRow& scaled_row,
                                      double length_scale,
                                      uint64_t salt,
                                      int32_t row) {
  const auto block_len =
      static_cast<int32_t>(std::max(1.0, std::round(kTraceBlockTokens * length_scale)));
  std::vector<PromptPiece> pieces;
  int32_t left = scaled_row.input_len;
  for (const int64_t id : scaled_row.hash_ids) {
    if (left == 0) break;
    const int32_t num_tokens = std::min(left, block_len);
    pieces.push_back({mix_seed(salt, static_cast<uint64_t>(id)), num_tokens});
    left -= num_tokens;
  }
  // The row's own key must meet no hash id's.
  if (left > 0) pieces.push_back({mix_seed(mix_seed(~salt, 0), static_cast<uint64_t>(row)), left});
  return pieces;
}

}  // namespace outrider
