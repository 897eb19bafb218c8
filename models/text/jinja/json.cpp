// A SAX reader, so that depth is checked before anything nested is built.
#include "models/text/jinja/json.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/text/jinja/operators.h"
#include "runtime/base/error.h"

namespace outrider::jinja {

namespace {

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(Trust trust, std::string_view what) : literal_(trust == Trust::kRequest), what_(what) {}

  bool null() override { return add(Value::none()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<number_unsigned_t>(INT64_MAX)) {
      return add(Value::integer(static_cast<int64_t>(value)));
    }
    return add(Value::big_integer(static_cast<double>(value), std::to_string(value)));
  }
  bool number_float(number_float_t value, const string_t& written) override {
    const bool whole = written.find_first_of(".eE") == std::string::npos;
    return add(whole ? Value::big_integer(value, written) : Value::real(value));
  }
  bool string(string_t& value) override { return add(Value::string(value, literal_)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(false); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    open_.back().key = Value::string(name, literal_);
    return true;
  }
  bool parse_error(size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    throw Error(fmt::format("{}: not valid JSON at byte {}", what_, position));
  }

  Value take() { return std::move(root_); }

 private:
  struct Open {
    bool is_object;
    Value key;
    Dict dict;
    std::vector<Value> items;
  };

  bool open(bool is_object) {
    if (open_.size() >= kMaxJsonDepth) {
      throw Error(fmt::format("{}: nested deeper than {} levels", what_, kMaxJsonDepth));
    }
    open_.push_back({is_object, {}, {}, {}});
    return true;
  }

  bool close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    return add(done.is_object ? Value::dict(std::move(done.dict))
                              : make_list(std::move(done.items)));
  }

  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  bool literal_;
  std::string_view what_;
  std::vector<Open> open_;
  Value root_;
};

}  // namespace

Value parse_json(std::string_view text, Trust trust, std::string_view what) {
  Builder builder(trust, what);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace outrider::jinja
