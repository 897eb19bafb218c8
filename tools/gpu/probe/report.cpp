// See report.h.
#include "tools/gpu/probe/report.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace outrider::gpu_probe {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::string& cell) {
  const Json value = Json::parse(cell, nullptr, false);
  return value.is_number() ? value : Json(cell);
}

Json json_of(const Table& table) {
  Json rows = Json::array();
  for (const std::vector<std::string>& row : table.rows) {
    Json& cells = rows.emplace_back(Json::array());
    for (const std::string& cell : row) cells.push_back(json_of(cell));
  }
  return {{"title", table.title}, {"columns", table.columns}, {"rows", rows}};
}

std::string markdown_row(const std::vector<std::string>& row) {
  std::string text = "|";
  for (const std::string& cell : row) text += " " + cell + " |";
  return text + "\n";
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

Report::Report(std::string name, std::string question, std::string folder)
    : name_(std::move(name)), question_(std::move(question)), folder_(std::move(folder)) {}

Table& Report::table(const std::string& title, std::vector<std::string> columns) {
  tables_.push_back({title, std::move(columns), {}});
  return tables_.back();
}

std::string Report::json(const std::string& status) const {
  Json all = {{"probe", name_}, {"status", status}, {"values", Json::object()}, {"notes", notes_}};
  for (const auto& [key, value] : values_)
    all["values"][key] = std::round(1e3 * value) / 1e3;  // what is not finite becomes null
  all["tables"] = Json::array();
  for (const Table& table : tables_) all["tables"].push_back(json_of(table));
  return all.dump(1, ' ', false, Json::error_handler_t::replace);
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
            markdown_row(std::vector<std::string>(table.columns.size(), "---"));
    for (const std::vector<std::string>& row : table.rows) text += markdown_row(row);
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
