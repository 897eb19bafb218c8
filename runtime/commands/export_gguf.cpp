// export-gguf: a model folder as one GGUF file, to run other programs beside this one on the same
// weights. One process; no other rank.
#include <fmt/format.h>

#include <chrono>

#include "models/gguf/export.h"
#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/commands/commands.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

GgufType type_from_name(const std::string& name) {
  for (const GgufType type : {GgufType::kF32, GgufType::kF16, GgufType::kBF16, GgufType::kQ8_0}) {
    if (name == gguf_type_name(type)) return type;
  }
  throw Error(fmt::format("outtype \"{}\" is not known", name));
}

}  // namespace

int export_gguf_command(const CommandLine& line) {
  std::string output;
  std::string type = "bf16";
  const Option rows[] = {
      with_aliases(path_option("output", &output, "file to write"), {"-o", "--outfile"}),
      choice_option("outtype", &type, {"f32", "f16", "bf16", "q8_0"}, "of the matrices")};
  const LoadedConfig loaded =
      load_config(line.arguments, {&rows[0], &rows[1]}, {.most = 1, .are_model = false});
  if (loaded.positional.empty() || output.empty()) {
    throw Error("usage: outrider export-gguf MODEL -o FILE.gguf --outtype f32|f16|bf16|q8_0");
  }
  auto last = std::chrono::steady_clock::now();
  export_gguf(model_folder(loaded.positional[0], Role::kTarget),
              output,
              type_from_name(type),
              [&last](uint64_t done, uint64_t all) {
                const auto now = std::chrono::steady_clock::now();
                if (now - last < std::chrono::seconds(2)) return;
                last = now;
                log_info("writing: {} of {} MB", done >> 20, all >> 20);
              });
  log_info("wrote {}: {} MB", output, std::filesystem::file_size(output) >> 20);
  return 0;
}

}  // namespace outrider
