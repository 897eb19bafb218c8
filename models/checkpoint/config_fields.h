// Typed reading of a JSON object of a model folder (config.json, generation_config.json and what
// lies in them). Remembers which keys were asked for, so that a family's reader can refuse the keys
// it does not know. Any thread, one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

struct IntRange {
  int64_t low;
  int64_t high;
};

// null counts as absent, as Hugging Face treats it. All throw Error naming the file, the key and
// what is wrong.
class ConfigFields {
 public:
  // json: of a document named `where`.
  ConfigFields(const std::string& json, std::string where);
  // A document of a model (model_documents.h); nothing when it has none.
  static std::optional<ConfigFields> read(const std::filesystem::path& model, const char* name);

  [[noreturn]] void fail(const std::string& what) const;
  const std::string& where() const { return where_; }

  bool has(const char* key) const;     // also when it is null
  bool is_set(const char* key) const;  // there and not null
  std::optional<int64_t> optional_int(const char* key, IntRange range) const;
  int32_t integer(const char* key, IntRange range) const;
  int32_t integer_or(const char* key, IntRange range, int64_t otherwise) const;
  std::optional<double> optional_number(const char* key) const;
  // A number in [low, high].
  double number_or(const char* key, double low, double high, double otherwise) const;
  bool flag_or(const char* key, bool otherwise) const;
  std::string text_or(const char* key, const char* otherwise) const;
  // A list, or a single value as a list of one; no value when absent.
  std::optional<std::vector<std::string>> texts(const char* key) const;
  std::optional<std::vector<double>> numbers(const char* key) const;
  std::optional<ConfigFields> object(const char* key) const;

  // Takes keys as known that need no reading.
  void know(const std::vector<const char*>& keys) const;
  // Keys that nobody asked for and whose value says something: not null, false, "", [] or {}.
  std::vector<std::string> unknown_keys() const;

 private:
  struct Object;
  ConfigFields(std::shared_ptr<Object> object, std::string where);

  std::shared_ptr<Object> object_;
  std::string where_;
};

}  // namespace outrider
