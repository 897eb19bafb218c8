// Values of the template language. Lists and dicts never change once made (the sandbox Hugging
// Face renders in forbids it too), so values can share them freely and no cycle can arise. The few
// things that do change (namespaces, loops, macros) belong to the Evaluator and are only pointed
// to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/jinja/budget.h"
#include "models/text/jinja/text.h"

namespace outrider::jinja {

struct List;
struct Dict;
struct Callable;
struct Namespace;
struct LoopState;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kDouble,
  kString,
  kList,
  kDict,
  kCallable,
  kNamespace,
  kLoop
};

class Value {
 public:
  Value() = default;                              // undefined
  static Value undefined(std::string complaint);  // why it is undefined, one clause
  static Value none();
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  // An integer literal of JSON too large for 64 bits: counts as a double, prints as written.
  static Value big_integer(double value, std::string digits);
  static Value string(Text text);
  static Value string(std::string_view trusted, bool literal = false);
  static Value list(List list);
  static Value list(std::shared_ptr<const List> list);
  static Value dict(Dict dict);
  static Value callable(Callable callable);
  static Value space(Namespace* space);  // owned by the Evaluator
  static Value loop(LoopState* loop);    // owned by the Evaluator

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return is_integral() || kind_ == Kind::kDouble; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }

  int64_t as_int() const { return kind_ == Kind::kBool ? boolean_ : integer_; }
  double as_double() const {
    return kind_ == Kind::kDouble ? real_ : static_cast<double>(as_int());
  }
  bool as_bool() const { return boolean_; }
  const Text& text() const { return *static_cast<const Text*>(object_.get()); }
  std::string_view bytes() const { return text().bytes; }
  const List& items() const { return *static_cast<const List*>(object_.get()); }
  std::shared_ptr<const List> shared_items() const;
  const Dict& entries() const { return *static_cast<const Dict*>(object_.get()); }
  const Callable& function() const { return *static_cast<const Callable*>(object_.get()); }
  Namespace& name_space() const { return *space_; }
  LoopState& loop_state() const { return *loop_; }
  // Undefined: why; big integer: its digits; else nullptr.
  const std::string* note() const;

  int depth() const;  // 0 for scalars, 1 + deepest element for lists and dicts

 private:
  explicit Value(Kind kind, std::shared_ptr<const void> object = nullptr)
      : kind_(kind), object_(std::move(object)) {}

  Kind kind_ = Kind::kUndefined;
  union {
    bool boolean_;
    int64_t integer_ = 0;
    double real_;
    Namespace* space_;
    LoopState* loop_;
  };
  std::shared_ptr<const void> object_;
};

enum class ListKind : uint8_t { kList, kTuple, kRange, kGenerator, kView };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int depth = 1;
};

// Keeps insertion order; a key given twice keeps its first place and its last value.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::map<std::string, size_t> index;  // by hash_key; filled from 8 entries on
  int depth = 1;

  void set(Value key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;

 private:
  size_t position(const std::string& key) const;
};

enum class Builtin : uint8_t { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };
struct Macro;

struct Callable {
  enum class Type : uint8_t { kBuiltin, kMethod, kMacro } type = Type::kBuiltin;
  Builtin builtin = Builtin::kRange;
  Value receiver;                // kMethod
  std::string_view name;         // kMethod: a string literal of the method table
  const Macro* macro = nullptr;  // kMacro; owned by the Evaluator
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  void set(const std::string& name, const Value& value);  // throws Failure for a name of "_..."
};

// Equal for keys Python calls equal; throws Failure for what Python cannot hash.
std::string hash_key(const Value& key);

std::string_view type_name(const Value& value);  // Python's, for messages
bool is_true(const Value& value);
bool equals(Budget& budget, const Value& left, const Value& right);
// <0, 0, >0. Throws Failure for values without an order.
int compare(Budget& budget, const Value& left, const Value& right);

// str(value) and repr(value) of Python, marks kept.
void append_string(Budget& budget, TextBuilder& out, const Value& value);
void append_repr(Budget& budget, TextBuilder& out, const Value& value);
Text to_text(Budget& budget, const Value& value);
std::string double_to_string(double value);  // repr(float)

}  // namespace outrider::jinja
