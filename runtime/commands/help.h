// The rows of --help on their pages: the terminal, docs/options.md, the man page, bash's
// completion.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/settings/options.h"
#include "runtime/commands/commands.h"

namespace outrider {

// The commands' names and helps as rows of a page.
std::vector<OptionHelp> help_of(const std::vector<Command>& commands);

// What --help says without a command.
std::string usage();

// The command's exit code, or 0 after its help was printed because somebody asked for it. before:
// words that stand before its name, "bench ".
int run_or_help(const std::string& before, const Command& command, const CommandLine& line);

}  // namespace outrider
