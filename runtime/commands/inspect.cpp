// tokenize, render and config dump: what the program would do with an input, for people, scripts
// and tests. No model is loaded.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/files/json_depth.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTemplateFileBytes = size_t{1} << 20;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One JSON object per line of stdin; a bad line is answered in place, so that the lines stay in
// step.
int answer_lines(const std::function<Json(const std::string&)>& answer) {
  int num_failed = 0;
  std::string line;
  for (int number = 1; std::getline(std::cin, line); ++number) {
    if (line.empty()) continue;
    Json out;
    try {
      out = answer(line);
    } catch (const std::exception& error) {
      out = Json{{"error", fmt::format("line {}: {}", number, error.what())}};
      ++num_failed;
    }
    std::printf("%s\n", dump(out).c_str());
    std::fflush(stdout);
  }
  return num_failed == 0 ? 0 : 3;
}

Json parse_object(const std::string& text) {
  if (json_nests_deeper_than(text, kMaxJsonDepth))
    throw Error(fmt::format("JSON is nested deeper than {}", kMaxJsonDepth));
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) throw Error("not a JSON object");
  return json;
}

Json tokenize_line(const Tokenizer& tokenizer, bool add_special_tokens, const std::string& line) {
  const Json in = parse_object(line);
  if (in.contains("text") == in.contains("ids")) throw Error("give either \"text\" or \"ids\"");
  std::vector<int32_t> ids;
  std::string text;
  if (in.contains("text")) {
    text = in.at("text").get<std::string>();
    ids = tokenizer.encode(text, {.add_special_tokens = add_special_tokens});
  } else {
    ids = in.at("ids").get<std::vector<int32_t>>();
    for (int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size())
        throw Error(fmt::format("token id {} is not in the vocabulary", id));
    }
    text = tokenizer.decode(ids, false);
  }
  return Json{{"text", text}, {"ids", ids}};
}

}  // namespace

int tokenize_command(const CommandLine& line) {
  bool add_special_tokens = false;
  const Option special =
      flag_option("add_special_tokens", &add_special_tokens, "add bos and the like");
  const LoadedConfig loaded = load_config(line.arguments, {&special});
  const auto tokenizer = Tokenizer::load(model_folder(loaded.config.model, Role::kTarget));
  return answer_lines(
      [&](const std::string& text) { return tokenize_line(*tokenizer, add_special_tokens, text); });
}

int render_command(const CommandLine& line) {
  std::string template_file;
  const Option file = path_option("template", &template_file, "Jinja file, instead of a model's");
  const LoadedConfig loaded = load_config(line.arguments, {&file});
  std::optional<ChatTemplate> chat_template;
  if (!template_file.empty()) {
    // The special tokens of the model that was named; those of the embedded one would be a
    // surprise.
    chat_template = ChatTemplate::parse(read_text_file(template_file, kMaxTemplateFileBytes),
                                        loaded.is_given("model")
                                            ? model_folder(loaded.config.model, Role::kTarget)
                                            : std::filesystem::path());
  } else {
    chat_template = ChatTemplate::load(model_folder(loaded.config.model, Role::kTarget));
    if (!chat_template)
      throw Error(fmt::format("model {} has no chat template", loaded.config.model));
  }
  return answer_lines([&](const std::string& text) {
    parse_object(text);
    return Json{{"prompt", chat_template->render(text).text}};
  });
}

int config_command(const CommandLine& line) {
  const bool dumps = !line.arguments.empty() && line.arguments[0] == "dump";
  const LoadedConfig loaded =
      load_config({line.arguments.begin() + (dumps ? 1 : 0), line.arguments.end()}, {}, kNoWords);
  if (!dumps) throw Error("usage: outrider config dump [options]");
  std::fputs(dump_config(loaded).c_str(), stdout);
  return 0;
}

}  // namespace outrider
