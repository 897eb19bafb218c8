// plot-rounds: some rounds of one request of a --trace file, as SVG.
#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/new_file.h"
#include "runtime/base/options.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/rounds/rounds_picture.h"

namespace outrider {
namespace {

constexpr size_t kMaxTraceBytes = size_t{1} << 30;

}  // namespace

int plot_rounds_command(const CommandLine& line) {
  std::string output;
  int32_t request = 0;
  RoundsChoice choice;
  const std::vector<Option> table = {
      integer_option("request", &request, 0, INT32_MAX, "its number; 0 = the first that drafts"),
      integer_option("first_round", &choice.first_round, 0, INT32_MAX, "sampling round"),
      integer_option("rounds", &choice.num_rounds, 1, 1000, "how many"),
      with_aliases(path_option("output", &output, "SVG file"), {"-o"})};
  const std::vector<const Option*> options = option_rows(table);
  answer_help(line.arguments, options, {});
  const ParsedArguments parsed = parse_arguments(line.arguments, options);
  refuse_surplus_words(parsed.positional, 1);
  for (const GivenValue& given : parsed.values) apply_value(given, options);
  if (parsed.positional.empty() || output.empty())
    throw Error("plot-rounds needs a trace file and -o FILE.svg");
  choice.request = static_cast<uint64_t>(request);
  const RoundsPicture picture =
      read_rounds(read_text_file(parsed.positional[0], kMaxTraceBytes), choice);
  write_new_file(output, rounds_svg(picture));
  fmt::print("request {}, rounds {} to {}: {}\n",
             picture.request,
             picture.rounds.front().round,
             picture.rounds.back().round,
             output);
  return 0;
}

}  // namespace outrider
