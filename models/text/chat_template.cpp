// Loading a model folder's template and rendering requests with it.
#include "models/text/chat_template.h"

#include <fmt/core.h>

#include <algorithm>

#include "models/checkpoint/model_documents.h"
#include "models/text/jinja/evaluator.h"
#include "models/text/jinja/json.h"
#include "models/text/jinja/operators.h"
#include "models/text/jinja/parser.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"

namespace outrider {

namespace {

using jinja::Dict;
using jinja::Kind;
using jinja::Value;

constexpr size_t kMaxTemplateBytes = 64u << 10;
constexpr size_t kMaxConfigBytes = 64u << 20;
constexpr const char* kTokenizerConfig = "tokenizer_config.json";

// The names under which Hugging Face gives a tokenizer's special tokens to a template.
constexpr std::string_view kSpecialTokens[] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// Roles a template may build special tokens from ('<|' + role + '|>'). Any other role is a text of
// the request like all others.
constexpr std::string_view kRoles[] = {"system",
                                       "user",
                                       "assistant",
                                       "tool",
                                       "developer",
                                       "function",
                                       "ipython",
                                       "model",
                                       "environment",
                                       "observation",
                                       "tool_response"};

// A special token of a config: a string, or an object with its text as "content".
const Value* token_text(const Value& token) {
  if (token.is(Kind::kString)) return &token;
  if (!token.is(Kind::kDict)) return nullptr;
  const Value* content = token.entries().find("content");
  return content != nullptr && content->is(Kind::kString) ? content : nullptr;
}

void collect_tokens(const Value& config, Dict& tokens) {
  for (const auto& [key, value] : config.entries().items) {
    if (!key.bytes().ends_with("_token")) continue;
    const Value* text = token_text(value);
    if (text != nullptr && tokens.find(key) == nullptr) tokens.set(key, *text);
  }
}

Value read_config(const std::filesystem::path& model_dir, const char* name) {
  const auto text = read_model_document(model_dir, name, kMaxConfigBytes);
  if (!text) return Value::dict({});
  const std::string origin = (model_dir / name).string();
  Value config = jinja::parse_json(*text, jinja::Trust::kConfig, origin);
  if (!config.is(Kind::kDict)) throw Error(origin + ": is not a JSON object");
  return config;
}

// config: of the tokenizer, which goes before the map.
Dict special_tokens(const std::filesystem::path& model_dir, const Value& config) {
  Dict tokens;
  collect_tokens(config, tokens);
  collect_tokens(read_config(model_dir, "special_tokens_map.json"), tokens);
  return tokens;
}

struct Sources {
  std::optional<std::string> common, with_tools;
};

Sources named_templates(const Value& list, const std::string& where) {
  Sources sources;
  for (const Value& entry : list.items().items) {
    const Value* name = entry.is(Kind::kDict) ? entry.entries().find("name") : nullptr;
    const Value* text = entry.is(Kind::kDict) ? entry.entries().find("template") : nullptr;
    if (!name || !text || !name->is(Kind::kString) || !text->is(Kind::kString)) {
      throw Error(where + ": an entry of chat_template lacks its name or template");
    }
    if (name->bytes() == "default") sources.common = text->bytes();
    if (name->bytes() == "tool_use") sources.with_tools = text->bytes();
  }
  if (!sources.common) throw Error(where + ": chat_template has no entry named 'default'");
  return sources;
}

Sources find_sources(const std::filesystem::path& model_dir, const Value& config) {
  Sources sources;
  sources.common = read_model_document(model_dir, "chat_template.jinja", kMaxTemplateBytes);
  if (sources.common) return sources;
  const Value* field = config.entries().find("chat_template");
  if (field == nullptr || field->is(Kind::kNone)) return sources;
  const std::string where = (model_dir / kTokenizerConfig).string();
  if (field->is(Kind::kList)) return named_templates(*field, where);
  if (!field->is(Kind::kString)) throw Error(where + ": chat_template is neither text nor a list");
  sources.common = field->bytes();
  return sources;
}

jinja::Program parse_source(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    throw Error(fmt::format("chat template: larger than {} bytes", kMaxTemplateBytes));
  }
  return jinja::parse_program(source);
}

// One message: its role loses the mark when known; older names of the reasoning field get the
// standard one too, as Hugging Face does.
Value prepared_message(const Value& message) {
  if (!message.is(Kind::kDict)) throw Error("chat template: a message is not a JSON object");
  Dict result;
  const Value* reasoning = nullptr;
  for (const std::string_view name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* found = message.entries().find(name);
    if (reasoning == nullptr && found != nullptr && !found->is(Kind::kNone)) reasoning = found;
  }
  if (reasoning != nullptr) result.set(Value::string("thinking"), *reasoning);
  for (const auto& [key, value] : message.entries().items) {
    const bool known_role = key.bytes() == "role" && value.is(Kind::kString) &&
                            std::ranges::count(kRoles, value.bytes()) > 0;
    result.set(key, known_role ? Value::string(value.bytes()) : value);
  }
  if (reasoning != nullptr) result.set(Value::string("reasoning_content"), *reasoning);
  return Value::dict(std::move(result));
}

Value prepared_messages(const Value& messages) {
  if (!messages.is(Kind::kList)) throw Error("chat template: 'messages' is not a list");
  std::vector<Value> result;
  for (const Value& message : messages.items().items) result.push_back(prepared_message(message));
  return jinja::make_list(std::move(result));
}

// To continue the last message, Hugging Face writes a mark behind its text and cuts the prompt
// where the mark comes out. Its space shows whether the template strips texts.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";

std::string_view stripped(std::string_view text, jinja::Side side) {
  const TextSpan range = jinja::stripped_range(text, side, nullptr);
  return text.substr(range.begin, range.end - range.begin);
}

// The messages with the mark behind the last one's text, which is written to `text`.
Value marked_messages(const Value& messages, std::string* text) {
  std::vector<Value> items = messages.items().items;
  Dict last = items.empty() ? Dict() : items.back().entries();
  const Value* content = last.find("content");
  if (content == nullptr || !content->is(Kind::kString))
    throw Error("chat template: the final message has no text to continue");
  *text = content->bytes();
  last.set(Value::string("content"), Value::string(*text + std::string(kMark), true));
  items.back() = Value::dict(std::move(last));
  return jinja::make_list(std::move(items));
}

// The prompt up to where the mark came out behind `text`.
void cut_at_mark(std::string_view text, jinja::Text* prompt) {
  const std::string_view mark = stripped(kMark, jinja::Side::kRight);
  size_t end = jinja::find_last(prompt->bytes, mark);
  const bool shows =
      jinja::find(prompt->bytes, stripped(text, jinja::Side::kBoth)) != std::string::npos;
  if (end == std::string::npos || !shows) {
    throw Error(
        "chat template: the final message cannot be continued, since the template changes it");
  }
  if (prompt->bytes.compare(end, kMark.size(), kMark) != 0)
    end = stripped(std::string_view(prompt->bytes).substr(0, end), jinja::Side::kRight).size();
  prompt->bytes.resize(end);
  std::erase_if(prompt->literals, [&](const TextSpan& span) { return span.begin >= end; });
  if (!prompt->literals.empty())
    prompt->literals.back().end = std::min(prompt->literals.back().end, end);
}

// The variables of the template: what Hugging Face always defines, the model's special tokens, and
// over them what the request gives.
// continued: the text of the message that is to be continued, if any.
Value make_inputs(std::string_view inputs_json,
                  const Dict& tokens,
                  std::optional<std::string>* continued) {
  const Value given = jinja::parse_json(inputs_json, jinja::Trust::kRequest, "chat request");
  if (!given.is(Kind::kDict)) throw Error("chat request: is not a JSON object");
  Dict inputs = tokens;
  inputs.set(Value::string("messages"), jinja::make_list({}));
  inputs.set(Value::string("tools"), Value::none());
  inputs.set(Value::string("documents"), Value::none());
  inputs.set(Value::string("add_generation_prompt"), Value::boolean(false));
  for (const auto& [key, value] : given.entries().items) {
    if (key.bytes() == "messages") {
      inputs.set(key, prepared_messages(value));
    } else if (std::ranges::count(kSpecialTokens, key.bytes()) > 0 && value.is(Kind::kString)) {
      inputs.set(key, Value::string(value.bytes()));
    } else if (key.bytes() == "continue_final_message") {
      if (jinja::is_true(value)) continued->emplace();
    } else {
      inputs.set(key, value);
    }
  }
  if (*continued) {
    const Value messages = *inputs.find("messages");
    inputs.set(Value::string("messages"), marked_messages(messages, &**continued));
  }
  return Value::dict(std::move(inputs));
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Program common;
  std::optional<jinja::Program> with_tools;
  Dict tokens;
  std::string source;
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

ChatTemplate ChatTemplate::parse(std::string source, const std::filesystem::path& model_dir) {
  auto impl = std::make_shared<Impl>();
  impl->common = parse_source(source);
  if (!model_dir.empty())
    impl->tokens = special_tokens(model_dir, read_config(model_dir, kTokenizerConfig));
  impl->source = std::move(source);
  return ChatTemplate(std::move(impl));
}

std::optional<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model_dir) {
  const Value config = read_config(model_dir, kTokenizerConfig);
  const Sources sources = find_sources(model_dir, config);
  if (!sources.common) return std::nullopt;
  auto impl = std::make_shared<Impl>();
  try {
    impl->common = parse_source(*sources.common);
    if (sources.with_tools) impl->with_tools = parse_source(*sources.with_tools);
  } catch (const Error& error) {
    throw Error(model_dir.string() + ": " + error.what());
  }
  impl->tokens = special_tokens(model_dir, config);
  impl->source = *sources.common + sources.with_tools.value_or("");
  return ChatTemplate(std::move(impl));
}

const std::string& ChatTemplate::source() const { return impl_->source; }

RenderedPrompt ChatTemplate::render(std::string_view inputs_json,
                                    const RenderLimits& limits) const {
  std::optional<std::string> continued;
  const Value inputs = make_inputs(inputs_json, impl_->tokens, &continued);
  const bool has_tools = jinja::is_true(*inputs.entries().find("tools"));
  const jinja::Program& program =
      has_tools && impl_->with_tools ? *impl_->with_tools : impl_->common;
  jinja::Budget budget(limits.max_steps, limits.max_output_bytes);
  jinja::Evaluator evaluator(program, budget, inputs, limits.now_unix_s);
  try {
    jinja::Text text = evaluator.run();
    if (continued) cut_at_mark(*continued, &text);
    return {std::move(text.bytes), std::move(text.literals)};
  } catch (const jinja::Failure& failure) {
    throw Error(fmt::format("chat template line {}: {}", evaluator.line(), failure.what()));
  }
}

}  // namespace outrider
