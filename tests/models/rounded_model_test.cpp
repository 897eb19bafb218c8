// activation_dtype bfloat16 on a trained model: what rounding costs in exactness (printed; the
// figures of docs/architecture.md, Numerics), and that the promises of same bits hold under it.
#include <cmath>

#include "models/text/tokenizer.h"
#include "runtime/comm/world/world.h"
#include "tests/models/strict_checks.h"

namespace outrider::test {
namespace {

// From two of the books the model was trained on, and one it does not know.
constexpr const char* kTexts[] = {
    "To Sherlock Holmes she is always the woman. I have seldom heard him mention her under any "
    "other "
    "name. In his eyes she eclipses and predominates the whole of her sex. It was not that he felt "
    "any emotion akin to love for Irene Adler. All emotions, and that one particularly, were "
    "abhorrent to his cold, precise but admirably balanced mind. He was, I take it, the most "
    "perfect "
    "reasoning and observing machine that the world has seen, but as a lover he would have placed "
    "himself in a false position.",
    "There was once a king who had a beautiful daughter, but she was so proud and haughty that no "
    "suitor was good enough for her. She sent away one after the other, and laughed at them as "
    "well. "
    "Once the king made a great feast and invited thereto, from far and near, all the young men "
    "likely to marry. They were all marshalled in a row according to their rank and standing; "
    "first "
    "came the kings, then the grand dukes, then the princes, the earls, the barons, and the "
    "gentry.",
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in "
    "my "
    "purse, and nothing particular to interest me on shore, I thought I would sail about a little "
    "and see the watery part of the world. It is a way I have of driving off the spleen and "
    "regulating the circulation. Whenever I find myself growing grim about the mouth; whenever it "
    "is "
    "a damp, drizzly November in my soul, I account it high time to get to sea as soon as I can."};

struct Differences {
  int64_t num_rows = 0;
  int64_t num_same_top = 0;
  int64_t num_logits = 0;
  double largest = 0;
  double squares = 0;
  double logit_squares = 0;
  double kl_sum = 0;
  double kl_largest = 0;
};

void compare_row(std::span<const float> exact, std::span<const float> rounded, Differences& sums) {
  const double exact_mass = log_mass(exact);
  const double rounded_mass = log_mass(rounded);
  double kl = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = std::abs(double{rounded[i]} - exact[i]);
    sums.largest = std::max(sums.largest, difference);
    sums.squares += difference * difference;
    sums.logit_squares += double{exact[i]} * exact[i];
    const double log_prob = exact[i] - exact_mass;
    kl += std::exp(log_prob) * (log_prob - (rounded[i] - rounded_mass));
  }
  ++sums.num_rows;
  sums.num_logits += static_cast<int64_t>(exact.size());
  sums.num_same_top += lowest_argmax(exact) == lowest_argmax(rounded) ? 1 : 0;
  sums.kl_sum += kl;
  sums.kl_largest = std::max(sums.kl_largest, kl);
}

TEST(RoundedModel, ErrorAgainstFloat32OnTheEmbeddedTarget) {
  LoneModel exact(embedded_target(), ops::best_isa());
  LoneModel rounding(embedded_target(), ops::best_isa());
  rounding.ctx.set_activations(ops::Activations::kBF16);
  const auto tokenizer = Tokenizer::load(embedded_target());
  std::vector<int32_t> blocks(16);
  std::iota(blocks.begin(), blocks.end(), 0);
  Differences sums;
  for (const char* text : kTexts) {
    const std::vector<int32_t> tokens = tokenizer->encode(text);
    ASSERT_GT(tokens.size(), 80u);
    const std::vector<float> expected = exact.run(tokens, 0, blocks);
    const std::vector<float> logits = rounding.run(tokens, 0, blocks);
    const auto vocab = static_cast<size_t>(exact.config.vocab_size);
    for (size_t row = 0; row < tokens.size(); ++row) {
      compare_row(std::span(expected).subspan(row * vocab, vocab),
                  std::span(logits).subspan(row * vocab, vocab),
                  sums);
    }
  }
  const double rms = std::sqrt(sums.squares / static_cast<double>(sums.num_logits));
  const double logit_rms = std::sqrt(sums.logit_squares / static_cast<double>(sums.num_logits));
  const auto rows = static_cast<double>(sums.num_rows);
  const double agreement = static_cast<double>(sums.num_same_top) / rows;
  std::printf(
      "%d rows: logits differ by %.4f rms, %.4f at most (their rms %.2f); same top token in "
      "%.2f%%; KL %.2e mean, %.2e at most\n",
      static_cast<int>(rows),
      rms,
      sums.largest,
      logit_rms,
      100 * agreement,
      sums.kl_sum / rows,
      sums.kl_largest);
  EXPECT_GT(rms, 0);
  EXPECT_LE(rms, 0.01 * logit_rms);
  EXPECT_LE(sums.largest, 0.3);
  EXPECT_GE(agreement, 0.97);
  EXPECT_LE(sums.kl_sum / rows, 1e-3);
}

TEST(RoundedModel, RowsOfAPromptAreTheRowsOfSingleStepsOnEveryIsa) {
  std::vector<int32_t> tokens =
      Tokenizer::load(embedded_target())->encode(std::string(kTexts[0]) + kTexts[1]);
  ASSERT_GT(tokens.size(), 200u);  // so that rows are computed in more than one block
  tokens.resize(200);
  std::vector<int32_t> blocks(16);
  std::iota(blocks.begin(), blocks.end(), 0);
  LoneModel first(embedded_target(), ops::best_isa());
  first.ctx.set_activations(ops::Activations::kBF16);
  const std::vector<float> expected = first.run(tokens, 0, blocks);
  for (const ops::Isa isa : available_isas()) {
    for (const bool dot : {false, true}) {
      if (dot && !(isa == ops::Isa::kAvx512 && ops::has_bf16_dot())) continue;
      LoneModel model(embedded_target(), isa, 2);
      model.ctx.set_activations(ops::Activations::kBF16);
      model.ctx.allow_bf16_dot(dot);
      // The slow one computes few rows: single steps of the beginning.
      const size_t count = isa == ops::Isa::kScalar ? 12 : tokens.size();
      const auto text = std::span(tokens).first(count);
      const auto vocab = static_cast<size_t>(model.config.vocab_size);
      const std::vector<float> prompt = model.run(text, 0, blocks);
      ASSERT_EQ(std::memcmp(prompt.data(), expected.data(), prompt.size() * sizeof(float)), 0)
          << ops::isa_name(isa) << (dot ? " with bf16 dot" : "");
      for (size_t at = 0; at < count; at += at == 20 ? 100 : 1) {
        const std::vector<float> step =
            model.run(text.subspan(at, 1), static_cast<int32_t>(at), blocks);
        ASSERT_EQ(std::memcmp(step.data(), expected.data() + at * vocab, vocab * sizeof(float)), 0)
            << ops::isa_name(isa) << " position " << at;
      }
    }
  }
}

// The embedded target in numerics strict: its sums are cut into slices, and each slice into chunks.
TEST(RoundedModel, StrictLogitsHaveTheSameBitsOnAnyNumberOfRanks) {
  StrictModel model;
  for (const StrictModel& candidate : awkward_models()) {
    if (candidate.embedded) model = candidate;
  }
  ASSERT_TRUE(model.embedded);
  const auto run_on = [&](int num_ranks, ops::Activations activations) {
    std::vector<float> logits;
    run_in_process(num_ranks, [&](World& world) {
      const auto group = world.make_target_group(num_ranks);
      std::vector<float> own = run_script(model, *group, Numerics::kStrict, activations);
      if (group->rank() == 0) logits = std::move(own);
    });
    return logits;
  };
  const std::vector<float> expected = run_on(1, ops::Activations::kBF16);
  expect_real_logits(expected);
  EXPECT_FALSE(same_logit_bits(run_on(1, ops::Activations::kF32), expected));
  for (const int num_ranks : {2, 4, 8}) {
    if (!fits(model, num_ranks)) continue;
    EXPECT_TRUE(same_logit_bits(run_on(num_ranks, ops::Activations::kBF16), expected)) << num_ranks;
  }
}

}  // namespace
}  // namespace outrider::test
