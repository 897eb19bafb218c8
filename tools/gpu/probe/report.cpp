// Writing a probe's report: no library, since the program must start on machines that have none of
// ours.
#include "tools/gpu/probe/report.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace outrider::gpu_probe {
namespace {

bool reads_as_number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789+-.e") != std::string::npos) {
    return false;
  }
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return *end == '\0' && std::isfinite(value) && text.front() != '+' && text.front() != '.' &&
         text.back() != '.';
}

std::string json_cell(const std::string& text) {
  return reads_as_number(text) ? text : json_string(text);
}

template <class Range, class Print>
std::string joined(const Range& range, const char* between, Print print) {
  std::string text;
  for (const auto& item : range) {
    text += (text.empty() ? "" : between) + print(item);
  }
  return text;
}

std::string json_table(const Table& table) {
  const auto row_text = [](const std::vector<std::string>& row) {
    return "[" + joined(row, ", ", json_cell) + "]";
  };
  return "{\"title\": " + json_string(table.title) + ", \"columns\": [" +
         joined(table.columns, ", ", json_string) + "], \"rows\": [" +
         joined(table.rows, ",\n    ", row_text) + "]}";
}

std::string markdown_row(const std::vector<std::string>& row) {
  return "| " + joined(row, " | ", [](const std::string& cell) { return cell; }) + " |\n";
}

}  // namespace

std::string number(double value, int digits) {
  if (!std::isfinite(value)) {
    return "none";
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Report::Report(std::string name, std::string question, std::string folder)
    : name_(std::move(name)), question_(std::move(question)), folder_(std::move(folder)) {}

Table& Report::table(const std::string& title, std::vector<std::string> columns) {
  tables_.push_back({title, std::move(columns), {}});
  return tables_.back();
}

std::string Report::json(const std::string& status) const {
  const auto value_text = [](const auto& entry) {
    const std::string shown = number(entry.second, 3);
    return json_string(entry.first) + ": " + (shown == "none" ? "null" : shown);
  };
  return "{\"probe\": " + json_string(name_) + ", \"status\": " + json_string(status) +
         ",\n \"values\": {" + joined(values_, ", ", value_text) + "},\n \"notes\": [" +
         joined(notes_, ", ", json_string) + "],\n \"tables\": [" +
         joined(tables_, ",\n  ", json_table) + "]}";
}

std::string Report::markdown(const std::string& status) const {
  std::string text = "## " + question_ + "\n\n";
  if (status != "ok") {
    text += "**" + name_ + ": " + status + "**\n\n";
  }
  for (const auto& [key, shown] : values_) {
    text += "- " + key + ": " + number(shown, 2) + "\n";
  }
  for (const std::string& sentence : notes_) {
    text += "- " + sentence + "\n";
  }
  for (const Table& table : tables_) {
    text += "\n" + table.title + "\n\n" + markdown_row(table.columns) +
            markdown_row(std::vector<std::string>(table.columns.size(), "---")) +
            joined(table.rows, "", markdown_row);
  }
  return text + "\n";
}

bool Report::save(const std::string& status) const {
  bool written = true;
  for (const auto& [ending, text] :
       {std::pair(".json", json(status)), std::pair(".md", markdown(status))}) {
    // In one step, so that whoever ends this process never finds half a file.
    const std::string path = folder_ + "/" + name_ + ending;
    std::ofstream(path + ".part") << text << "\n";
    written = std::rename((path + ".part").c_str(), path.c_str()) == 0 && written;
  }
  return written;
}

}  // namespace outrider::gpu_probe
