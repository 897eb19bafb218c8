// See trace_file.h. The text is put together by hand: a trace has many small events, and all of it
// but the names of hosts is numbers and words of ours.
#include "runtime/base/telemetry/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/block_source.h"

namespace outrider {
namespace {

std::string quoted(const std::string& text) {
  using Json = nlohmann::json;
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// How an event appears.
struct Line {
  int64_t time_ns = 0;
  int64_t duration_ns = 0;
  int rank = 0;
  char phase = 'X';  // of its kind; 'e' where a span in a request's lane ends
  const TraceEvent* event = nullptr;
};

// What ends at a moment stands before what begins there, what encloses before what is enclosed.
bool comes_before(const Line& a, const Line& b) {
  if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
  const bool a_ends = a.phase == 'e';
  const bool b_ends = b.phase == 'e';
  if (a_ends != b_ends) return a_ends;
  return a_ends ? a.duration_ns < b.duration_ns : a.duration_ns > b.duration_ns;
}

std::vector<Line> lines_of(const std::vector<RankTrace>& ranks) {
  std::vector<Line> lines;
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  for (const RankTrace& rank : ranks) {
    for (const TraceEvent& event : rank.events) {
      const int64_t begin_ns = event.begin_ns - rank.clock_offset_ns;
      first_ns = std::min(first_ns, begin_ns);
      const char phase = text_of(event.kind).phase;
      lines.push_back({begin_ns, event.duration_ns, rank.rank, phase, &event});
      if (phase != 'b') continue;
      lines.push_back({begin_ns + event.duration_ns, event.duration_ns, rank.rank, 'e', &event});
    }
  }
  for (Line& line : lines) line.time_ns -= first_ns;
  std::stable_sort(lines.begin(), lines.end(), comes_before);
  return lines;
}

std::string arguments_of(const TraceEvent& event) {
  std::string out = event.id == 0 ? "" : fmt::format("\"sequence\":{}", event.id);
  const TraceKindText& text = text_of(event.kind);
  for (size_t i = 0; i < kMaxTraceArguments && text.arguments[i] != nullptr; ++i) {
    if (!out.empty()) out += ',';
    if (event.kind == TraceKind::kVerification && i == 4) {
      const char* const source = kBlockSourceNames.at(static_cast<size_t>(event.arguments[i]));
      out += fmt::format("\"{}\":\"{}\"", text.arguments[i], source);
    } else {
      out += fmt::format("\"{}\":{}", text.arguments[i], event.arguments[i]);
    }
  }
  return out;
}

void append_time(const char* key, int64_t time_ns, std::string* out) {
  fmt::format_to(std::back_inserter(*out), ",\"{}\":{}.{:03}", key, time_ns / 1000, time_ns % 1000);
}

void append(const Line& line, std::string* out) {
  const TraceEvent& event = *line.event;
  const bool arrow = line.phase == 's' || line.phase == 'f';
  const bool lane = line.phase == 'b' || line.phase == 'e';
  fmt::format_to(std::back_inserter(*out),
                 ",\n{{\"name\":\"{}\",\"ph\":\"{}\",\"pid\":{},\"tid\":0",
                 arrow ? "message" : text_of(event.kind).name,
                 line.phase,
                 line.rank);
  append_time("ts", line.time_ns, out);
  if (line.phase == 'X') append_time("dur", std::max<int64_t>(line.duration_ns, 0), out);
  if (line.phase == 'i') *out += ",\"s\":\"t\"";
  if (arrow)
    fmt::format_to(std::back_inserter(*out), ",\"cat\":\"message\",\"id\":\"{:x}\"", event.id);
  if (line.phase == 'f') *out += ",\"bp\":\"e\"";
  if (lane) fmt::format_to(std::back_inserter(*out), ",\"cat\":\"request\",\"id\":{}", event.id);
  if (!arrow && line.phase != 'e') {
    if (const std::string arguments = arguments_of(event); !arguments.empty()) {
      fmt::format_to(std::back_inserter(*out), ",\"args\":{{{}}}", arguments);
    }
  }
  *out += '}';
}

}  // namespace

std::string chrome_trace_text(const std::vector<RankTrace>& ranks) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"outrider\"";
  for (const RankTrace& rank : ranks) {
    out += fmt::format(
        ",\"rank {}\":{{\"name\":{},\"host\":{},\"clock_offset_us\":{:.3f},"
        "\"events\":{},\"lost_events\":{}}}",
        rank.rank,
        quoted(rank.name),
        quoted(rank.host),
        static_cast<double>(rank.clock_offset_ns) * 1e-3,
        rank.events.size(),
        rank.num_lost);
  }
  out += "},\"traceEvents\":[";
  const char* separator = "\n";
  for (const RankTrace& rank : ranks) {
    const std::string name = quoted(fmt::format("rank {}: {}", rank.rank, rank.name));
    out += fmt::format(
        "{0}{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{1},\"tid\":0,\"args\":{{\"name\":{2}}"
        "}}},"
        "\n{{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":{1},\"tid\":0,\"args\":{{\"sort_"
        "index\":{1}}}}},"
        "\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{1},\"tid\":0,\"args\":{{\"name\":"
        "\"rounds\"}}}}",
        separator,
        rank.rank,
        name);
    separator = ",\n";
  }
  for (const Line& line : lines_of(ranks)) append(line, &out);
  return out + "\n]}\n";
}

}  // namespace outrider
