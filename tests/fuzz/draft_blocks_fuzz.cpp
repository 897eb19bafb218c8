// What a draft may say of two sequences, one that it drafts for asynchronously: an operation is a
// byte, for a block its fields and tokens follow. Whatever it says, the text is the target's alone,
// and the planner's books are right.
#include "scheduler/batching/planner.h"
#include "tests/fuzz/fuzz.h"
#include "tests/scheduler/fake_ranks.h"
#include "tests/scheduler/packed.h"

namespace {

using namespace outrider;

PlannerConfig config() {
  return {.block_size = 4,
          .num_blocks = 32,
          .max_num_seqs = 2,
          .max_num_batched_tokens = 16,
          .max_model_len = 48,
          .vocab_size = 17,
          .draft_method = DraftMethod::kDraftModel,
          .num_speculative_tokens = 3};
}

Request request(uint64_t id) {
  Request made{.id = id, .prompt = {1, 2, 3, static_cast<int32_t>(id)}};
  made.params.temperature = 0;
  made.params.max_tokens = 12;
  made.params.async_drafting = id == 1 ? AsyncDrafting::kCache : AsyncDrafting::kOff;
  made.params.verify_mode = VerifyMode::kBlock;
  made.stream = std::make_shared<ResultStream>();
  return made;
}

struct Known {
  uint32_t round = 0;
  int32_t num_tokens = 4;
};

// Numbers near those that mean something, and now and then any.
int32_t near(fuzz::Input* input, int32_t value) {
  const uint32_t byte = input->byte();
  if (byte >= 250) return static_cast<int32_t>(0x80000000u + (byte - 250) * 0x33333333u);
  return static_cast<int32_t>(static_cast<uint32_t>(value) + byte % 8 - 1);
}

DraftBlock block(fuzz::Input* input, uint64_t id, const Known& known) {
  DraftBlock made{.sequence_id = id};
  made.round = static_cast<uint32_t>(near(input, static_cast<int32_t>(known.round)));
  made.base_len = near(input, known.num_tokens);
  made.guess = near(input, 0);
  made.first = near(input, 1);
  for (int count = input->byte() % 5; count > 0; --count) {
    DraftToken& token = made.tokens.emplace_back();
    token.token = near(input, input->byte() % 16);
    for (int more = input->byte() % 3; more > 0; --more)
      token.candidates.push_back(
          {near(input, token.token), static_cast<float>(near(input, 1)) / 2});
  }
  return made;
}

void check_text(const testing::FakeModel& model, const Request& request) {
  std::vector<int32_t> text;
  while (const auto event = request.stream->wait_next(std::chrono::milliseconds(0)))
    text.insert(text.end(), event->tokens.begin(), event->tokens.end());
  FUZZ_CHECK(text == testing::expected_text(model, request).tokens);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const testing::FakeModel model;
  fuzz::Input input(data, num_bytes);
  Planner planner(config());
  testing::FakeTarget target(model, config());
  std::map<uint64_t, Known> known = {{1, {}}, {2, {}}};
  const Request requests[] = {request(1), request(2)};
  for (const Request& each : requests) planner.add(each);
  std::optional<RoundPlan> plan;  // in flight
  while (!planner.idle()) {
    const uint8_t what = input.byte();  // 0 for ever, when the input is at its end
    if (what % 4 == 3) {
      const uint64_t id = 1 + what / 4 % 3;
      testing::offer(planner, block(&input, id, known[id]));
    } else if (!plan) {
      planner.take_draft_request(what % 4 == 1);
      plan = planner.plan();
    } else {
      const RoundDecision decision = target.execute(*plan);
      planner.apply(*plan, decision);
      for (const SequenceDecision& each : decision.sequences) {
        Known& one = known[each.sequence_id];
        if (each.next_token < 0) continue;
        ++one.round;
        one.num_tokens += each.num_accepted + 1;
      }
      plan.reset();
    }
  }
  FUZZ_CHECK(target.faults().empty());
  FUZZ_CHECK(planner.fault().empty());
  for (const Request& each : requests) check_text(model, each);
  return 0;
}
