// A run's settings: the first byte says whether the rest is a YAML file or the words of a command
// line, one a line. What is taken and printed as YAML is taken again and prints the same.
#include "models/simulated/spec.h"
#include "runtime/base/settings/config.h"
#include "runtime/ranks/roles.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

std::string without_comments(const std::string& yaml) {
  std::string out;
  for (size_t at = 0, end; at < yaml.size(); at = end + 1) {
    end = yaml.find('\n', at);
    const std::string line = yaml.substr(at, end - at);
    out += line.substr(0, line.rfind("  # ")) + "\n";
  }
  return out;
}

// Of the command line all but what names other files.
std::vector<std::string> words_of(fuzz::Input input) {
  std::vector<std::string> words;
  while (!input.empty()) {
    const std::string word = input.text_until('\n');
    if (word.find_first_of("/~") == std::string::npos && word.find('\0') == std::string::npos)
      words.push_back(word);
  }
  return words;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  static const fuzz::Folder folder;
  fuzz::Input input(data, num_bytes);
  const bool is_yaml = input.byte() % 2 == 0;
  try {
    fuzz::takes([&] {
      const LoadedConfig loaded = load_config(
          is_yaml ? std::vector<std::string>{"--config", folder.write("a.yaml", input.rest())}
                  : words_of(input));
      fuzz::takes([&] { make_layout(loaded.config, 3); });
      if (is_simulated(loaded.config.model))
        fuzz::takes([&] { parse_simulated(loaded.config.model); });
      if (!loaded.config.api_keys.empty() || !loaded.config.draft_key.empty()) return;  // hidden
      const std::string printed = dump_config(loaded);
      const LoadedConfig again = load_config({"--config", folder.write("b.yaml", printed)});
      FUZZ_CHECK(without_comments(dump_config(again)) == without_comments(printed));
    });
  } catch (const HelpAsked&) {
  }
  return 0;
}
