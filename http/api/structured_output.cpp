// See structured_output.h.
#include "http/api/structured_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "http/wire/api_error.h"

namespace outrider {
namespace {

constexpr const char* kAnyObject = R"({"type":"object","additionalProperties":true})";

enum class Form : uint8_t { kSchema, kRegex, kChoice, kGrammar, kTag, kAnyJsonObject };

struct GrammarField {
  const char* name;
  Form form;
};

constexpr GrammarField kFields[] = {
    {"guided_json", Form::kSchema},
    {"guided_regex", Form::kRegex},
    {"guided_choice", Form::kChoice},
    {"guided_grammar", Form::kGrammar},
    {"json_schema", Form::kSchema},
    {"grammar", Form::kGrammar},
    {"regex", Form::kRegex},
    {"ebnf", Form::kGrammar},
};

// Of structured_outputs, as vLLM names them.
constexpr GrammarField kInnerFields[] = {
    {"json", Form::kSchema},
    {"regex", Form::kRegex},
    {"choice", Form::kChoice},
    {"grammar", Form::kGrammar},
    {"structural_tag", Form::kTag},
    {"json_object", Form::kAnyJsonObject},
};

// A JSON value as it was sent, or the text that holds one.
std::string json_or_text(const JsonFields& fields, const std::string& name) {
  if (fields.kind(name) != JsonKind::kText) return fields.dump(name);
  std::string text = *fields.text(name);
  const std::string fault = json_fault(text, kBodyLimits);
  if (fault.empty()) return text;
  throw fields.fault(name, fault);
}

std::string one_of(const std::vector<std::string>& choices) {
  std::string rule = "root ::=";
  for (const std::string& choice : choices) {
    rule += fmt::format("{} {}", rule.back() == '=' ? "" : " |", json_quoted(choice));
  }
  return rule;
}

Grammar choice_of(const JsonFields& fields, const std::string& name) {
  const auto choices = fields.texts(name);
  if (!choices || choices->empty()) throw fields.fault(name, "must be a list of strings");
  return {GrammarKind::kEbnf, one_of(*choices), {}};
}

// EBNF and GBNF define rules by "::=", Lark by a colon.
Grammar grammar_of(std::string text) {
  const bool is_ebnf = text.find("::=") != std::string::npos;
  return {is_ebnf ? GrammarKind::kEbnf : GrammarKind::kLark, std::move(text), {}};
}

Grammar grammar_in(const JsonFields& fields, const GrammarField& field) {
  const std::string name = field.name;
  switch (field.form) {
    case Form::kSchema:
      return {GrammarKind::kJsonSchema, json_or_text(fields, name), {}};
    case Form::kRegex:
      return {GrammarKind::kRegex, *fields.text(name), {}};
    case Form::kChoice:
      return choice_of(fields, name);
    case Form::kGrammar:
      return grammar_of(*fields.text(name));
    case Form::kTag:
      return {GrammarKind::kStructuralTag, json_or_text(fields, name), {}};
    case Form::kAnyJsonObject:
      break;
  }
  return {GrammarKind::kJsonSchema, kAnyObject, {}};
}

bool is_given(const JsonFields& fields, const GrammarField& field) {
  if (field.form == Form::kAnyJsonObject) return fields.boolean(field.name).value_or(false);
  return fields.has(field.name);
}

bool is_empty(const JsonFields& fields, const GrammarField& field) {
  const std::string value = fields.dump(field.name);
  return value == "\"\"" || value == "[]";
}

template <size_t kCount>
void collect(const JsonFields& fields,
             const GrammarField (&known)[kCount],
             std::vector<RequestedGrammar>* found) {
  for (const GrammarField& field : known) {
    if (!is_given(fields, field)) continue;
    if (!is_empty(fields, field)) {
      found->push_back({grammar_in(fields, field), fields.path_of(field.name), false});
    } else if (!fields.path().empty()) {  // else llama.cpp's clients mean none
      throw fields.fault(field.name, "is empty");
    }
  }
}

void read_response_format(const JsonFields& body, std::vector<RequestedGrammar>* found) {
  const std::optional<JsonFields> format = body.object("response_format");
  if (!format) return;
  const std::string type = format->text("type").value_or("");
  if (type == "text") return;
  Grammar grammar;
  bool is_strict = false;
  if (type == "json_object") {  // llama.cpp's may bring a schema
    grammar.text = format->has("schema") ? json_or_text(*format, "schema") : kAnyObject;
  } else if (type == "json_schema") {
    const std::optional<JsonFields> named = format->object("json_schema");
    if (!named || !named->has("schema")) {
      throw bad_param("response_format",
                      "'response_format.json_schema.schema' is needed with the type json_schema");
    }
    grammar.text = json_or_text(*named, "schema");
    is_strict = named->boolean("strict").value_or(false);
  } else if (type == "structural_tag") {
    grammar = {GrammarKind::kStructuralTag, format->dump(), {}};
  } else {
    throw bad_param("response_format",
                    "'response_format.type' must be text, json_object, json_schema or "
                    "structural_tag");
  }
  found->push_back({std::move(grammar), "response_format", is_strict});
}

void read_structured_outputs(const JsonFields& body, std::vector<RequestedGrammar>* found) {
  const std::optional<JsonFields> fields = body.object("structured_outputs");
  if (!fields) return;
  for (const std::string& name : fields->names()) {
    const bool is_known = std::ranges::any_of(
        kInnerFields, [&](const GrammarField& field) { return name == field.name; });
    if (is_known || name == "disable_any_whitespace" || !fields->has(name)) continue;
    throw fields->fault(name, "is not supported");
  }
  collect(*fields, kInnerFields, found);
}

bool is_compact(const JsonFields& body, const CallLimits& limits) {
  const std::optional<JsonFields> fields = body.object("structured_outputs");
  const std::string name = "disable_any_whitespace";
  return (fields ? fields->boolean(name) : std::nullopt).value_or(limits.disable_any_whitespace);
}

}  // namespace

std::optional<RequestedGrammar> read_grammar(const JsonFields& body, const CallLimits& limits) {
  std::vector<RequestedGrammar> found;
  read_response_format(body, &found);
  read_structured_outputs(body, &found);
  collect(body, kFields, &found);
  if (found.empty()) return std::nullopt;
  if (found.size() > 1) {
    throw bad_param(
        found[1].param,
        fmt::format(
            "'{}' and '{}' both say what the output must be", found[0].param, found[1].param));
  }
  RequestedGrammar& one = found.front();
  if (one.grammar.text.size() > limits.max_grammar_bytes) {
    throw bad_param(
        one.param, fmt::format("'{}' has more than {} bytes", one.param, limits.max_grammar_bytes));
  }
  if (one.grammar.kind == GrammarKind::kJsonSchema && is_compact(body, limits))
    one.grammar.kind = GrammarKind::kCompactJson;
  return std::move(one);
}

}  // namespace outrider
