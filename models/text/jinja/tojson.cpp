// The tojson filter: json.dumps of Python as Hugging Face calls it (no HTML escaping).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "models/text/jinja/filters.h"
#include "models/text/tokenizer/unicode.h"

namespace outrider::jinja {

namespace {

class JsonWriter {
 public:
  JsonWriter(Budget& budget, ArgumentReader& arguments) : budget_(budget), out_(budget) {
    ensure_ascii_ = arguments.next_bool("ensure_ascii", false);
    read_indent(arguments.next("indent"));
    read_separators(arguments.next("separators"));
    sort_keys_ = arguments.next_bool("sort_keys", false);
  }

  void write(const Value& value) {
    budget_.step();
    const DepthGuard guard(budget_);
    switch (value.kind()) {
      case Kind::kNone:
        return out_.append("null");
      case Kind::kBool:
        return out_.append(value.as_bool() ? "true" : "false");
      case Kind::kInt:
        return out_.append(std::to_string(value.as_int()));
      case Kind::kDouble:
        return out_.append(number(value));
      case Kind::kString:
        return write_string(value.text());
      case Kind::kList:
        if (value.items().kind == ListKind::kList || value.items().kind == ListKind::kTuple) {
          return write_list(value.items());
        }
        break;
      case Kind::kDict:
        return write_dict(value.entries());
      default:
        break;
    }
    throw Failure(fmt::format("a value of type '{}' cannot be written as JSON", type_name(value)));
  }

  Text take() { return out_.take(); }

 private:
  void read_indent(const Value* indent) {
    if (indent == nullptr || indent->is(Kind::kNone)) return;
    if (indent->is(Kind::kString)) {
      indent_ = indent->text().bytes;
    } else {
      const int64_t width = expect_int(*indent, "tojson");
      if (width > 256) throw Failure("tojson takes an indent of at most 256");
      indent_ = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
    comma_.assign(1, ',');
  }

  void read_separators(const Value* separators) {
    if (separators == nullptr || separators->is(Kind::kNone)) return;
    if (!separators->is(Kind::kList) || separators->items().items.size() != 2) {
      throw Failure("tojson needs two separators");
    }
    comma_ = expect_text(separators->items().items[0], "tojson").bytes;
    colon_ = expect_text(separators->items().items[1], "tojson").bytes;
  }

  static std::string number(const Value& value) {
    if (value.note() != nullptr) return *value.note();
    const double real = value.as_double();
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real < 0 ? "-Infinity" : "Infinity";
    return double_to_string(real);
  }

  void new_line() {
    if (!indent_) return;
    out_.append("\n");
    for (int i = 0; i < level_; ++i) out_.append(*indent_);
  }

  void write_list(const List& list) {
    out_.append("[");
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(comma_);
      new_line();
      write(list.items[i]);
    }
    --level_;
    if (!list.items.empty()) new_line();
    out_.append("]");
  }

  void write_dict(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (sort_keys_) {
      std::stable_sort(items.begin(), items.end(), [&](const auto* left, const auto* right) {
        return compare(budget_, left->first, right->first) < 0;
      });
    }
    out_.append("{");
    ++level_;
    bool first = true;
    for (const auto* item : items) {
      if (!first) out_.append(comma_);
      first = false;
      new_line();
      write_key(item->first);
      out_.append(colon_);
      write(item->second);
    }
    --level_;
    if (!items.empty()) new_line();
    out_.append("}");
  }

  void write_key(const Value& key) {
    if (key.is(Kind::kString)) return write_string(key.text());
    if (key.is(Kind::kList)) throw Failure("a JSON key must be a string or a number");
    out_.append("\"");
    write(key);
    out_.append("\"");
  }

  void write_string(const Text& text) {
    out_.append("\"");
    out_.append_mapped(text, [&](uint32_t c) { return escaped(c); });
    out_.append("\"");
  }

  std::string escaped(uint32_t c) const {
    static constexpr std::string_view kLetters = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kNames = "\"\\nrtbf";
    if (c < 0x80) {
      const size_t at = kLetters.find(static_cast<char>(c));
      if (at != std::string_view::npos) return {'\\', kNames[at]};
    }
    if (c >= 0x20 && (c < 0x80 || !ensure_ascii_)) return unicode::utf8(c);
    if (c < 0x10000) return fmt::format("\\u{:04x}", c);
    const uint32_t rest = c - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  Budget& budget_;
  TextBuilder out_;
  bool ensure_ascii_ = false, sort_keys_ = false;
  std::optional<std::string> indent_;
  std::string comma_ = ", ", colon_ = ": ";
  int level_ = 0;
};

}  // namespace

Value to_json(Budget& budget, const Value& value, const Arguments& arguments) {
  ArgumentReader reader("tojson", arguments);
  JsonWriter writer(budget, reader);
  writer.write(value);
  reader.finish();
  return Value::string(writer.take());
}

}  // namespace outrider::jinja
