// See json_gate.h.
#include "runtime/base/files/json_gate.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

namespace outrider {
namespace {

using Json = nlohmann::json;

// Watches the events of the parser, which stops at the first fault.
class JsonGate : public nlohmann::json_sax<Json> {
 public:
  explicit JsonGate(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_array(std::size_t) override { return value() && open(); }
  bool end_array() override { return close(); }
  bool start_object(std::size_t) override { return (keys_.empty() || value()) && open(); }
  bool end_object() override { return close(); }
  bool key(string_t& name) override {
    if (keys_.back().size() == limits_.max_keys)
      return fail(fmt::format("has an object with more than {} keys", limits_.max_keys));
    if (keys_.back().insert(name).second) return true;
    const Json shown = name.substr(0, kShownBytes);
    return fail(fmt::format("has the key {} twice",
                            shown.dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  bool parse_error(std::size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("is not valid JSON near byte {}", position));
  }

  const std::string& fault() const { return fault_; }

 private:
  static constexpr size_t kShownBytes = 200;

  bool value() {
    if (keys_.empty()) return fail("is not a JSON object");
    if (++num_values_ <= limits_.max_values) return true;
    return fail(fmt::format("has more than {} values", limits_.max_values));
  }
  bool open() {
    keys_.emplace_back();
    if (keys_.size() <= limits_.max_depth) return true;
    return fail(fmt::format("is nested deeper than {} levels", limits_.max_depth));
  }
  bool close() {
    keys_.pop_back();
    return true;
  }
  bool fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
    return false;
  }

  const JsonLimits& limits_;
  std::vector<std::set<std::string>> keys_;
  size_t num_values_ = 0;
  std::string fault_;
};

}  // namespace

std::string json_fault(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return fmt::format("has {} bytes; at most {} are read", text.size(), limits.max_bytes);
  JsonGate gate(limits);
  if (Json::sax_parse(text.begin(), text.end(), &gate)) return "";
  return gate.fault().empty() ? "is not valid JSON" : gate.fault();
}

}  // namespace outrider
