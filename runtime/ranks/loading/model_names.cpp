// See model_names.h.
#include "runtime/ranks/loading/model_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "models/checkpoint/folder_mistakes.h"
#include "models/families/families.h"
#include "models/simulated/spec.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr std::string_view kSyntheticPrefix = "synth:";

std::filesystem::path embedded_folder(const std::string& name) {
  std::vector<std::filesystem::path> places;
  if (const char* share = std::getenv("OUTRIDER_SHARE")) places.emplace_back(share);
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  places.push_back(program.parent_path() / ".." / "share" / "outrider");
  places.push_back(program.parent_path() / "..");  // build/ beside the sources
  places.emplace_back(OUTRIDER_SOURCE_DIR);
  for (const auto& place : places) {
    const auto folder = place / "models" / "embedded" / name;
    if (std::filesystem::is_directory(folder, ignored))
      return std::filesystem::weakly_canonical(folder);
  }
  throw Error(
      "the embedded pair is not beside the program; set OUTRIDER_SHARE to the folder that holds "
      "models/embedded");
}

}  // namespace

std::filesystem::path model_folder(const std::string& name, Role role) {
  if (name == "embedded") return embedded_folder(role == Role::kDraft ? "draft" : "target");
  return find_model_folder(name);
}

SyntheticName parse_synthetic(const std::string& name) {
  constexpr std::string_view kEpsilon = "epsilon=";
  SyntheticName parsed;
  const size_t mark = name.find('?');
  parsed.shape = name.substr(kSyntheticPrefix.size(), mark - kSyntheticPrefix.size());
  if (mark == std::string::npos) return parsed;
  const std::string_view given = std::string_view(name).substr(mark + 1);
  const char* end = name.data() + name.size();
  const char* begin = given.data() + std::min(kEpsilon.size(), given.size());
  double& epsilon = parsed.recipe.epsilon;
  const auto [stopped, error] = std::from_chars(begin, end, epsilon);
  const bool is_number = given.starts_with(kEpsilon) && error == std::errc{} && stopped == end;
  if (!is_number || !(epsilon >= 0 && epsilon <= 1))
    throw Error(fmt::format("'{}': only epsilon=0 to 1 may follow the question mark", name));
  return parsed;
}

bool is_synthetic(const std::string& name) { return name.starts_with(kSyntheticPrefix); }

bool has_no_files(const std::string& name) { return is_synthetic(name) || is_simulated(name); }

ModelConfig model_config_of(const RunConfig& config, Role role) {
  const bool is_draft = role == Role::kDraft;
  ModelConfig model = model_config_of(is_draft ? config.speculative.model : config.model, role);
  model.served_positions = config.max_model_len;
  model.load_format = load_format(is_draft ? config.speculative.quantization : config.quantization);
  return model;
}

ModelConfig model_config_of(const std::string& name, Role role) {
  if (is_synthetic(name)) return synthetic_shape(parse_synthetic(name).shape);
  if (is_simulated(name)) return simulated_config(parse_simulated(name));
  return load_model_config(model_folder(name, role));
}

}  // namespace outrider
