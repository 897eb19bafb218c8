// What one probe found: sentences, named numbers and tables, written as JSON and as Markdown. Host
// code only; one process writes one report.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace outrider::gpu_probe {

// A number with a fixed number of digits behind the point. NaN and infinity become "none".
std::string number(double value, int digits = 1);

struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>>
      rows;  // as many cells as columns; a cell that reads as a number is one in JSON
};

class Report {
 public:
  // Writes to folder/name.json and folder/name.md. `question` is the section's heading.
  Report(std::string name, std::string question, std::string folder);

  void note(const std::string& sentence) { notes_.push_back(sentence); }
  void value(const std::string& key, double value) { values_[key] = value; }
  // The place is fixed until the next call of table().
  Table& table(const std::string& title, std::vector<std::string> columns);

  // Called after every few rows, so that a probe that is ended by its time limit leaves what it
  // had. `status`: "ok", "running", or a sentence that says what failed. False when a file could
  // not be written.
  bool save(const std::string& status) const;

  std::string json(const std::string& status) const;
  std::string markdown(const std::string& status) const;

 private:
  std::string name_;
  std::string question_;
  std::string folder_;
  std::vector<std::string> notes_;
  std::map<std::string, double> values_;
  std::vector<Table> tables_;
};

}  // namespace outrider::gpu_probe
