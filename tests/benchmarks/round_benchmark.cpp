// What a rank does in a round besides its models, on made-up logits and without a job: judging,
// proposing, and turning plans and replies into bytes and back. One shard; the exchange between
// ranks is not in it.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/ops/ops.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/logit_scanner.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/verification/verify.h"

namespace outrider {
namespace {

constexpr uint64_t kSeed = 0x40d;
constexpr int32_t kPromptTokens = 64;

struct RoundShape {
  int32_t num_sequences = 1;
  int32_t vocab_size = 32000;
  int32_t draft_len = 4;
  int32_t num_candidates = 16;
};

// About normal, with the spread of a language model's logits; target and draft agree in part.
float made_up_logit(uint32_t row, int32_t token, double share_of_own, uint32_t owner) {
  const auto sum_of_four = [&](uint32_t position) {
    const PhiloxBlock block =
        noise_block({kSeed, position, Stream::kAccept, row}, static_cast<uint32_t>(token));
    double sum = -2;
    for (const uint32_t lane : block.lane) sum += uniform_from_bits(lane);
    return sum;
  };
  const double common = sum_of_four(0);
  return static_cast<float>(5 * (common + share_of_own * sum_of_four(owner)));
}

// One round's work, made once.
class Rounds {
 public:
  Rounds(const RoundShape& shape, VerifyMode mode)
      : shape_(shape), context_(ops::plan_threads({})), scanner_(make_pooled_scanner(context_)) {
    const auto num_rows = static_cast<size_t>(shape.num_sequences * (shape.draft_len + 1));
    const auto width = static_cast<size_t>(shape.vocab_size);
    target_logits_.resize(num_rows * width);
    draft_logits_.resize(num_rows * width);
    // Many rows share few patterns: what matters is how many bytes are read.
    constexpr size_t kPatterns = 16;
    for (size_t row = 0; row < num_rows; ++row) {
      for (size_t i = 0; i < width; ++i) {
        const size_t at = row * width + i;
        const bool known = row >= kPatterns;
        const size_t from = (row % kPatterns) * width + i;
        const auto token = static_cast<int32_t>(i);
        const auto index = static_cast<uint32_t>(row);
        target_logits_[at] = known ? target_logits_[from] : made_up_logit(index, token, 0.3, 1);
        draft_logits_[at] = known ? draft_logits_[from] : made_up_logit(index, token, 0.3, 2);
      }
    }
    for (int32_t n = 0; n < shape.num_sequences; ++n) {
      SamplingParams params{.verify_mode = mode};
      params.noise_seed = mix_seed(kSeed, static_cast<uint64_t>(n));
      params_.push_back(params);
      tokens_.emplace_back(static_cast<size_t>(kPromptTokens), 1);
    }
    propose_all();
    make_plan();
    encode_plan();
    encode_reply();
    judge();
  }

  void propose_all() {
    drafts_.assign(static_cast<size_t>(shape_.num_sequences), {});
    for (int32_t i = 0; i < shape_.draft_len; ++i) {
      std::vector<DraftInput> inputs;
      for (size_t n = 0; n < drafts_.size(); ++n) {
        inputs.push_back({.params = &params_[n],
                          .tokens = tokens_[n],
                          .num_prompt_tokens = kPromptTokens,
                          .drafted = drafts_[n],
                          .logits = row_of(draft_logits_, n, i),
                          .vocab_size = shape_.vocab_size,
                          .target_vocab_size = shape_.vocab_size,
                          .num_candidates = shape_.num_candidates});
      }
      const std::vector<RankedDraftToken> proposed = propose_ranked(inputs, *scanner_);
      for (size_t n = 0; n < drafts_.size(); ++n) drafts_[n].push_back(proposed[n].drawn);
    }
  }

  // One shard's part of the work: its columns, without the exchange with the others.
  void judge() {
    std::vector<VerifyInput> inputs;
    for (size_t n = 0; n < drafts_.size(); ++n) {
      inputs.push_back({.sequence_id = n + 1,
                        .params = &params_[n],
                        .tokens = tokens_[n],
                        .num_prompt_tokens = kPromptTokens,
                        .draft = drafts_[n],
                        .logits = row_of(target_logits_, n, 0)});
    }
    SoloExchange exchange;
    const VocabShard whole = {0, shape_.vocab_size, shape_.vocab_size};
    decision_.sequences = verify(inputs, whole, *scanner_, exchange);
  }

  void encode_plan() { plan_bytes_ = encode(plan_); }
  void decode_plan() {
    OUTRIDER_CHECK(decode_round_plan(plan_bytes_).sequences.size() == drafts_.size());
  }
  void encode_reply() {
    reply_frame_ = encode_frame({.kind = FrameKind::kReply, .epoch = 1, .payload = encode(reply_)});
  }
  void decode_reply() {
    Frame frame;
    OUTRIDER_CHECK(decode_frame(reply_frame_, 1, &frame));
    OUTRIDER_CHECK(decode_draft_reply(frame.payload).blocks.size() == drafts_.size());
  }
  void digest_decision() { digest_ = digest(1, decision_); }

 private:
  const float* row_of(const std::vector<float>& logits, size_t sequence, int32_t index) const {
    const size_t row =
        sequence * static_cast<size_t>(shape_.draft_len + 1) + static_cast<size_t>(index);
    return logits.data() + row * static_cast<size_t>(shape_.vocab_size);
  }
  void make_plan() {
    for (size_t n = 0; n < drafts_.size(); ++n) {
      plan_.sequences.push_back({.sequence_id = n + 1, .draft = drafts_[n]});
      reply_.blocks.push_back({.sequence_id = n + 1, .tokens = drafts_[n]});
    }
  }

  const RoundShape shape_;
  ops::Context context_;
  const std::unique_ptr<RowScanner> scanner_;
  std::vector<float> target_logits_;
  std::vector<float> draft_logits_;
  std::vector<SamplingParams> params_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<DraftToken>> drafts_;
  RoundPlan plan_;
  DraftReply reply_;
  RoundDecision decision_;
  Bytes plan_bytes_;
  Bytes reply_frame_;
  uint64_t digest_ = 0;
};

void run_round(benchmark::State& state, VerifyMode mode, void (Rounds::*work)()) {
  Rounds rounds({.num_sequences = static_cast<int32_t>(state.range(0)),
                 .vocab_size = static_cast<int32_t>(state.range(1))},
                mode);
  for (auto _ : state) (rounds.*work)();
}

void sizes(benchmark::internal::Benchmark* registered) {
  registered->ArgNames({"sequences", "columns"})
      ->ArgsProduct({{1, 16, 64}, {32000, 128256}})
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

// Of all draft tokens of a round.
BENCHMARK_CAPTURE(run_round, propose, VerifyMode::kBlock, &Rounds::propose_all)->Apply(sizes);
BENCHMARK_CAPTURE(run_round, verify_standard, VerifyMode::kStandard, &Rounds::judge)->Apply(sizes);
BENCHMARK_CAPTURE(run_round, verify_block, VerifyMode::kBlock, &Rounds::judge)->Apply(sizes);
BENCHMARK_CAPTURE(run_round, verify_coupled, VerifyMode::kCoupled, &Rounds::judge)->Apply(sizes);
BENCHMARK_CAPTURE(run_round, encode_plan, VerifyMode::kBlock, &Rounds::encode_plan)->Apply(sizes);
BENCHMARK_CAPTURE(run_round, decode_plan, VerifyMode::kBlock, &Rounds::decode_plan)->Apply(sizes);
BENCHMARK_CAPTURE(run_round, encode_reply, VerifyMode::kBlock, &Rounds::encode_reply)->Apply(sizes);
BENCHMARK_CAPTURE(run_round, decode_reply, VerifyMode::kBlock, &Rounds::decode_reply)->Apply(sizes);
BENCHMARK_CAPTURE(run_round, digest, VerifyMode::kBlock, &Rounds::digest_decision)->Apply(sizes);

}  // namespace
}  // namespace outrider
