// What the coordinator tells the target ranks: a plan, its candidates behind it, late draft tokens.
// What is read and written again is the same message from then on.
#include "runtime/ranks/messages/round_wire.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

void read_plan(const Bytes& bytes) {
  RoundPlan plan = decode_round_plan(bytes);
  const Bytes again = encode(plan);
  FUZZ_CHECK(encode(decode_round_plan(again)) == again);
}

// Of a plan with two sequences, one of which has a bonus draft token.
void read_candidates(const Bytes& bytes) {
  RoundPlan plan{.round = 7, .sequences = {{}, {}}};
  plan.sequences[0].draft.resize(2);
  plan.sequences[1].bonus_draft.emplace();
  decode_candidates(bytes, plan);
  FUZZ_CHECK(encode_candidates(plan) == bytes);
}

void read_late_tokens(const Bytes& bytes) {
  FUZZ_CHECK(encode(decode_late_draft_tokens(bytes)) == bytes);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  fuzz::Input input(data, num_bytes);
  const uint8_t kind = input.byte() % 3;
  const auto rest = std::as_bytes(std::span(input.rest()));
  const Bytes bytes(rest.begin(), rest.end());
  fuzz::takes([&] {
    if (kind == 0) read_plan(bytes);
    if (kind == 1) read_candidates(bytes);
    if (kind == 2) read_late_tokens(bytes);
  });
  return 0;
}
