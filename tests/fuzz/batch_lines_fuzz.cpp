// The input file of a batch, as anybody may upload it: lines that can be answered, or faults that
// name them.
#include "http/batches/batch_lines.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace outrider;
  static const fuzz::Folder folder;
  static const EngineInfo info{.served_model_name = "m", .max_model_len = 512, .vocab_size = 265};
  static const GenerationDefaults defaults;
  static const CallLimits limits;
  static const std::vector<int32_t> end_token_ids = {262};
  static const AnswerFormats formats = choose_answer_formats({}, "hermes", "qwen3");
  const std::string path = folder.write("lines", fuzz::Input(data, num_bytes).rest());
  const CallContext context{info, defaults, limits, end_token_ids, formats};
  const BatchInput input = read_batch_input(path, context, {.max_lines = 5, .max_faults = 3});
  FUZZ_CHECK(input.lines.size() <= 5 && input.faults.size() <= 3);
  for (const BatchLineFault& fault : input.faults) FUZZ_CHECK(!fault.message.empty());
  for (const BatchLine& line : input.lines)
    FUZZ_CHECK(line.num_requests > 0 && is_batch_endpoint(line.url));
  return 0;
}
