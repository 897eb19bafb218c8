// See serve_traces.h.
#include "runtime/commands/bench/serve/serve_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokens = 16 << 20;  // of one prompt or answer
constexpr size_t kMaxLineBytes = 4 << 20;
constexpr size_t kMaxRows = 10000000;
constexpr double kMaxSeconds = 100.0 * 366 * 86400;

[[noreturn]] void fail(const std::string& origin, size_t line, const std::string& what) {
  throw Error(fmt::format("{} line {}: {}", origin, line, what));
}

// Calls `row` with every line that is not empty and its number.
void for_each_line(std::string_view text,
                   const std::string& origin,
                   const std::function<void(std::string_view, size_t)>& row) {
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.size() > kMaxLineBytes)
      fail(origin, number, fmt::format("longer than {} bytes", kMaxLineBytes));
    if (number > kMaxRows) fail(origin, number, fmt::format("more than {} lines", kMaxRows));
    if (!line.empty()) row(line, number);
  }
}

template <typename Number>
bool parse_whole(std::string_view text, Number* out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return code == std::errc() && end == text.data() + text.size();
}

// Days since 1970-01-01 in the Gregorian calendar, from the count of days of whole 400-year eras.
int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = (year >= 0 ? year : year - 399) / 400;
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year -
         719468;
}

// "2023-11-16 18:17:03.9799600" (also with T, with an offset that is left out) in seconds, or plain
// seconds.
bool parse_time(std::string_view text, double* seconds) {
  if (parse_whole(text, seconds)) return std::isfinite(*seconds);
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':' ||
      (text[10] != ' ' && text[10] != 'T')) {
    return false;
  }
  text = text.substr(0, std::min(text.find_first_of("+Z", 19), text.size()));
  int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  const bool read =
      parse_whole(text.substr(0, 4), &year) && parse_whole(text.substr(5, 2), &month) &&
      parse_whole(text.substr(8, 2), &day) && parse_whole(text.substr(11, 2), &hour) &&
      parse_whole(text.substr(14, 2), &minute) && parse_whole(text.substr(17), &second);
  if (!read || month < 1 || month > 12 || day < 1 || day > 31 || hour < 0 || hour > 23 ||
      minute < 0 || minute > 59 || !(second >= 0 && second < 61)) {
    return false;
  }
  *seconds =
      static_cast<double>(days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60) +
      second;
  return true;
}

int32_t checked_length(int64_t value, int64_t least, const char* name, const std::string& place) {
  if (value < least || value > kMaxTokens)
    throw Error(
        fmt::format("{}: {} is {}, must be {} to {}", place, name, value, least, kMaxTokens));
  return static_cast<int32_t>(value);
}

// Times count from the first row and never go back.
class Clock {
 public:
  double since_first(double seconds, const std::string& place) {
    if (!has_first_) first_ = seconds;
    has_first_ = true;
    const double since = seconds - first_;
    if (!(since >= last_)) throw Error(fmt::format("{}: earlier than the line before", place));
    if (!(since <= kMaxSeconds)) throw Error(fmt::format("{}: the time is out of range", place));
    last_ = since;
    return since;
  }

 private:
  bool has_first_ = false;
  double first_ = 0;
  double last_ = 0;
};

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

bool is_azure_header(std::string_view line) {
  return line == "TIMESTAMP,ContextTokens,GeneratedTokens" ||
         line == "arrived_at,num_prefill_tokens,num_decode_tokens";
}

int64_t integer_field(const Json& row, const char* name, const std::string& place) {
  const auto found = row.find(name);
  if (found == row.end()) throw Error(fmt::format("{}: there is no {}", place, name));
  if (!found->is_number_integer())
    throw Error(fmt::format("{}: {} must be an integer", place, name));
  if (found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX)
    throw Error(fmt::format("{}: {} is out of range", place, name));
  return found->get<int64_t>();
}

std::vector<int64_t> hash_ids_of(const Json& row, int32_t input_len, const std::string& place) {
  const auto found = row.find("hash_ids");
  if (found == row.end()) return {};
  if (!found->is_array()) throw Error(fmt::format("{}: hash_ids must be a list", place));
  const size_t num_blocks =
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
    if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() > INT64_MAX))
      throw Error(fmt::format("{}: hash_ids must be integers", place));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

int32_t scaled_length(int32_t length, double scale) {
  const double scaled = std::round(length * scale);
  return static_cast<int32_t>(std::clamp(scaled, 1.0, static_cast<double>(kMaxTokens)));
}

}  // namespace

std::vector<TraceRow> parse_azure_trace(std::string_view text, const std::string& origin) {
  std::vector<TraceRow> rows;
  bool has_header = false;
  Clock clock;
  for_each_line(text, origin, [&](std::string_view line, size_t number) {
    if (!has_header) {
      if (!is_azure_header(line))
        fail(origin, number, "the header must be TIMESTAMP,ContextTokens,GeneratedTokens");
      has_header = true;
      return;
    }
    const std::string place = fmt::format("{} line {}", origin, number);
    const std::vector<std::string_view> fields = fields_of(line);
    if (fields.size() != 3)
      fail(origin, number, fmt::format("{} fields instead of 3", fields.size()));
    double seconds = 0;
    int64_t input_len = 0;
    int64_t output_len = 0;
    if (!parse_time(fields[0], &seconds))
      fail(origin, number, fmt::format("'{}' is no time", fields[0].substr(0, 64)));
    if (!parse_whole(fields[1], &input_len) || !parse_whole(fields[2], &output_len))
      fail(origin, number, "the numbers of tokens must be integers");
    rows.push_back({clock.since_first(seconds, place),
                    checked_length(input_len, 1, "the prompt's length", place),
                    checked_length(output_len, 0, "the answer's length", place),
                    {}});
  });
  if (rows.empty()) throw Error(fmt::format("{} has no requests", origin));
  return rows;
}

std::vector<TraceRow> parse_mooncake_trace(std::string_view text, const std::string& origin) {
  std::vector<TraceRow> rows;
  Clock clock;
  for_each_line(text, origin, [&](std::string_view line, size_t number) {
    const std::string place = fmt::format("{} line {}", origin, number);
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) fail(origin, number, "not a JSON object");
    const auto time = row.find("timestamp");
    if (time == row.end() || !time->is_number())
      fail(origin, number, "timestamp must be a number of milliseconds");
    TraceRow out;
    out.arrival_s = clock.since_first(time->get<double>() / 1e3, place);
    out.input_len =
        checked_length(integer_field(row, "input_length", place), 1, "input_length", place);
    out.output_len =
        checked_length(integer_field(row, "output_length", place), 0, "output_length", place);
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

}  // namespace outrider
