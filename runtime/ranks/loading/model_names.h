// Which model a name of the options means: a folder, one of the embedded pair, a synthetic or a
// simulated one; and its configuration.
#pragma once

#include <filesystem>
#include <string>

#include "models/checkpoint/model_config.h"
#include "models/synthetic/synthetic.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// A folder as given (models/checkpoint/folder_mistakes.h: a cache folder's snapshot), or of the
// embedded pair for "embedded" (role picks target or draft). Throws Error when there is no such
// folder.
std::filesystem::path model_folder(const std::string& name, Role role);

// "synth:SHAPE": random weights in a shape of models/synthetic/synthetic.h, for benchmarks. There
// is no folder and no tokenizer. "synth:SHAPE?epsilon=0.09": how much the layers after the first
// two change, so how seldom a draft of those two is right.
bool is_synthetic(const std::string& name);
struct SyntheticName {
  std::string shape;
  SyntheticRecipe recipe;
};
// Throws Error for what is not of that form.
SyntheticName parse_synthetic(const std::string& name);

// Synthetic, or simulated (models/simulated/spec.h): neither folder nor tokenizer.
bool has_no_files(const std::string& name);

// Of a folder, the embedded pair, a synthetic or a simulated model.
ModelConfig model_config_of(const std::string& name, Role role);
// Of the config's target or draft, with what its weights become at load.
ModelConfig model_config_of(const RunConfig& config, Role role);

}  // namespace outrider
