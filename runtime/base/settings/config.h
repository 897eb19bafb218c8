// From the command line, the environment and a YAML file to a RunConfig, in that order of
// precedence. Names are vLLM's where it has one; an unknown key is refused with the nearest known
// name.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/base/settings/options.h"
#include "runtime/base/settings/run_config.h"

namespace outrider {

// The rows of a RunConfig; fields are written through the pointer, which must outlive the rows.
std::vector<Option> run_config_options(RunConfig* config);

struct LoadedConfig {
  RunConfig config;
  std::vector<std::string> positional;
  std::vector<GivenValue> given;      // what was set, in the order applied; the last of a key won
  std::vector<std::string> accepted;  // sentences about other servers' options that change nothing

  bool is_given(const std::string& key) const;
};

// The words of a command line that belong to no option.
struct Words {
  size_t most = 1;
  bool are_model =
      true;  // one word is the model, as with vLLM; else LoadedConfig::positional has them
};
constexpr Words kNoWords{.most = 0, .are_model = false};

// arguments: after the command's name; --config FILE names the YAML. extra: the command's own
// options, command line only. Throws Error naming the key and where it came from, and for a word
// too many; HelpAsked for --help. An option of the command hides one of the table. Sets the log
// level; a job's first rank logs what was accepted.
LoadedConfig load_config(const std::vector<std::string>& arguments,
                         const std::vector<const Option*>& extra = {},
                         const Words& words = {});

// The effective configuration as YAML, each line with the origin of its value as a comment. Keys
// are not shown.
std::string dump_config(const LoadedConfig& loaded);

}  // namespace outrider
