// check-pair: whether a draft can serve a target, as one line and an exit code, for people and
// scripts. Reads tokenizers and configurations only.
#include <cstdio>

#include "runtime/base/error.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/ranks/loading/draft_pair.h"

namespace outrider {
namespace {

constexpr int kExitNotCompatible = 4;

}  // namespace

int check_pair_command(const CommandLine& line) {
  const LoadedConfig loaded = load_config(line.arguments, {}, {.most = 2, .are_model = false});
  if (loaded.positional.size() != 2)
    throw Error("usage: outrider check-pair TARGET DRAFT (model folders, or 'embedded')");
  const VocabularyMatch match = match_pair(loaded.positional[0], loaded.positional[1]);
  std::printf("%s\n", describe(match).c_str());
  return match.usable_directly() ? 0 : kExitNotCompatible;
}

}  // namespace outrider
