// Data sets of `bench serve`: the first byte says whether the lines are prompts or a timed trace
// (Mooncake's form). What is taken is in order and within the limits.
#include "runtime/commands/bench/prompt_files.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace outrider;
  fuzz::Input input(data, num_bytes);
  const bool is_trace = input.byte() % 2 == 1;
  std::vector<RequestShape> shapes;
  const bool taken = fuzz::takes([&] {
    shapes = is_trace ? parse_timed_trace(input.rest(), "input")
                      : parse_prompt_lines(input.rest(), "input");
  });
  FUZZ_CHECK(taken != shapes.empty());
  double last_s = 0;
  for (const RequestShape& shape : shapes) {
    FUZZ_CHECK(shape.arrival_s >= last_s);
    FUZZ_CHECK(shape.output_len >= 0 && shape.input_len >= 0);
    FUZZ_CHECK(is_trace ? shape.input_len > 0 && shape.output_len > 0 : !shape.text.empty());
    last_s = shape.arrival_s;
  }
  return 0;
}
