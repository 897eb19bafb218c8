// quantize: a model folder with 8-bit or 4-bit projections, in a layout that other programs read
// too. One process; no other rank.
#include <fmt/format.h>

#include <chrono>

#include "models/weights/quantized_folder.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {

int quantize_command(const CommandLine& line) {
  std::string output;
  std::string format = "int8";
  std::string layout = "auto";
  QuantizeOptions options;
  const std::vector<Option> rows = {
      with_aliases(path_option("output", &output, "folder to make"), {"-o"}),
      choice_option("format", &format, {"int8", "int4"}, "of the weights"),
      integer_option(
          "group_size", &options.group_size, 0, 1 << 20, "inputs that share a scale; 0 = all"),
      choice_option("layout",
                    &layout,
                    {"auto", "int-quantized", "pack-quantized"},
                    "of compressed-tensors; auto = pack-quantized for int4, else int-quantized"),
      flag_option("keep_head", &options.keep_head, "leave the head as it is")};
  const LoadedConfig loaded =
      load_config(line.arguments, option_rows(rows), {.most = 1, .are_model = false});
  if (loaded.positional.empty() || output.empty()) {
    throw Error("usage: outrider quantize MODEL -o DIR [--format int4] [--group-size 128]");
  }
  options.bits = format == "int4" ? 4 : 8;
  if (options.bits == 4 && layout == "int-quantized")
    throw Error("layout int-quantized holds 8 bits; int4 needs pack-quantized");
  options.packed = options.bits == 4 || layout == "pack-quantized";
  auto last = std::chrono::steady_clock::now();
  uint64_t num_bytes = 0;
  quantize_folder(model_folder(loaded.positional[0], Role::kTarget),
                  output,
                  options,
                  [&](uint64_t done, uint64_t all) {
                    num_bytes = all;
                    const auto now = std::chrono::steady_clock::now();
                    if (now - last < std::chrono::seconds(2)) return;
                    last = now;
                    log_info("writing: {} of {} MB", done >> 20, all >> 20);
                  });
  log_info("wrote {}: {} MB of weights", output, num_bytes >> 20);
  return 0;
}

}  // namespace outrider
