// See checked_json.h.
#include "models/checked_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/files.h"

namespace outrider {

std::string printable(const std::string& name) {
  std::string text = name.substr(0, 200);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return text;
}

namespace {

using Json = nlohmann::json;

// Watches the events of the parser: depth, one object at the top, keys unique in their object.
class JsonGate : public nlohmann::json_sax<Json> {
 public:
  JsonGate(const JsonLimits& limits, std::string origin)
      : limits_(limits), origin_(std::move(origin)) {}

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool string(string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool start_array(std::size_t) override {
    scalar();
    return open();
  }
  bool end_array() override { return close(); }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      throw Error(fmt::format("{}: the key \"{}\" is there twice", origin_, printable(name)));
    }
    return true;
  }
  bool parse_error(std::size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    throw Error(fmt::format("{}: is not valid JSON near byte {}", origin_, position));
  }

 private:
  bool scalar() {
    if (keys_.empty()) throw Error(fmt::format("{}: the top level is not an object", origin_));
    return true;
  }
  bool open() {
    keys_.emplace_back();
    if (keys_.size() > static_cast<size_t>(limits_.max_depth)) {
      throw Error(fmt::format("{}: is nested deeper than {} levels", origin_, limits_.max_depth));
    }
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  JsonLimits limits_;
  std::string origin_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

void check_json(const std::string& text, const JsonLimits& limits, const std::string& origin) {
  if (text.size() > limits.max_bytes) {
    throw Error(fmt::format(
        "{}: has {} bytes; at most {} are read", origin, text.size(), limits.max_bytes));
  }
  JsonGate gate(limits, origin);
  if (!Json::sax_parse(text, &gate)) throw Error(fmt::format("{}: is not valid JSON", origin));
}

std::string read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  const std::string text = read_regular_file(path, limits.max_bytes);
  check_json(text, limits, path.string());
  return text;
}

}  // namespace outrider
