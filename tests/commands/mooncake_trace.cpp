// See mooncake_trace.h.
#include "tests/commands/mooncake_trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/base/numbers/rng.h"

namespace outrider {
namespace {

constexpr double kMaxTokens = 16 << 20;  // of one prompt or answer

int32_t scaled_length(int32_t length, double scale) {
  const double scaled = std::round(length * scale);
  return static_cast<int32_t>(std::clamp(scaled, 1.0, kMaxTokens));
}

}  // namespace

std::vector<TraceRow> parse_mooncake_trace(const std::string& text) {
  std::vector<TraceRow> rows;
  std::istringstream lines(text);
  double first_s = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    const double time_s = row.at("timestamp").get<double>() / 1e3;
    if (rows.empty()) first_s = time_s;
    rows.push_back({time_s - first_s,
                    row.at("input_length").get<int32_t>(),
                    row.at("output_length").get<int32_t>(),
                    row.at("hash_ids").get<std::vector<int64_t>>()});
  }
  return rows;
}

void scale_trace(double time_scale, double length_scale, std::vector<TraceRow>* rows) {
  for (TraceRow& row : *rows) {
    row.arrival_s *= time_scale;
    row.input_len = scaled_length(row.input_len, length_scale);
    row.output_len = scaled_length(row.output_len, length_scale);
  }
}

std::vector<TracePiece> trace_pieces(const TraceRow& scaled_row,
                                     double length_scale,
                                     uint64_t salt,
                                     int32_t row) {
  const auto block_len =
      static_cast<int32_t>(std::max(1.0, std::round(kTraceBlockTokens * length_scale)));
  std::vector<TracePiece> pieces;
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
