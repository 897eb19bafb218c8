// What 8-bit and 4-bit weights and 8-bit activations, and narrow keys and values, cost on trained
// models: perplexity, KL divergence and agreement of the likeliest token over public-domain books
// (printed; the figures of docs/reference/quantization.md). Skipped without the folder of real
// inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "models/text/tokenizer.h"
#include "models/weights/quantized_folder.h"
#include "tests/models/model_test_util.h"

namespace outrider::test {
namespace {

constexpr size_t kWindow = 256;
constexpr size_t kWindowsPerBook = 8;
constexpr size_t kBookBytes = 60'000;  // from the middle of each

struct Cost {
  double exact_loss = 0;  // sums over rows, nats
  double rounded_loss = 0;
  double kl = 0;
  double difference = 0;  // of the next token's log-probability
  double largest_difference = 0;
  int64_t num_same_top = 0;
  int64_t num_rows = 0;
};

struct Rounding {
  const char* name;
  int bits;  // of weights; 0: as they are
  int32_t group;
  double most_kl;  // nats
  double least_same;
  double most_loss = 0.01;  // of perplexity, as a share
  ops::KvType kv_type = ops::KvType::kF32;
  ops::Activations activations = ops::Activations::kF32;  // of both
};

void compare_row(std::span<const float> exact,
                 std::span<const float> rounded,
                 int32_t next,
                 Cost& cost) {
  const double exact_mass = log_mass(exact);
  const double rounded_mass = log_mass(rounded);
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_prob = exact[i] - exact_mass;
    cost.kl += std::exp(log_prob) * (log_prob - (rounded[i] - rounded_mass));
  }
  const double exact_loss = exact_mass - exact[static_cast<size_t>(next)];
  const double rounded_loss = rounded_mass - rounded[static_cast<size_t>(next)];
  cost.exact_loss += exact_loss;
  cost.rounded_loss += rounded_loss;
  cost.difference += std::abs(rounded_loss - exact_loss);
  cost.largest_difference = std::max(cost.largest_difference, std::abs(rounded_loss - exact_loss));
  cost.num_same_top += lowest_argmax(exact) == lowest_argmax(rounded) ? 1 : 0;
  ++cost.num_rows;
}

std::vector<std::vector<int32_t>> windows_of(const Tokenizer& tokenizer,
                                             const std::filesystem::path& texts) {
  std::vector<std::filesystem::path> books;
  for (const auto& entry : std::filesystem::directory_iterator(texts)) {
    if (entry.path().extension() == ".txt") books.push_back(entry.path());
  }
  std::sort(books.begin(), books.end());
  std::vector<std::vector<int32_t>> windows;
  for (const auto& book : books) {
    const std::string text = read_bytes(book);
    const auto tokens = tokenizer.encode(text.substr(text.size() / 2, kBookBytes));
    for (size_t w = 0; w < kWindowsPerBook && (w + 1) * kWindow <= tokens.size(); ++w) {
      const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(w * kWindow);
      windows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(kWindow));
    }
  }
  return windows;
}

// bits 8: rounded at load; 4: by `outrider quantize`.
Cost cost_of(const std::filesystem::path& model,
             const std::filesystem::path& texts,
             const Rounding& rounding) {
  ModelConfig config = load_model_config(model);
  LoneModel exact(config, model, ops::best_isa(), 2);
  const TempDir dir;
  std::filesystem::path folder = model;
  if (rounding.bits == 4) {
    folder = dir.path() / "int4";
    quantize_folder(model, folder, {.bits = 4, .group_size = rounding.group, .packed = true}, {});
  }
  ModelConfig rounded_config = load_model_config(folder);
  if (rounding.bits == 8) rounded_config.load_format = load_format("int8");
  TransformerOptions options = kOptions;
  options.kv_type = rounding.kv_type;
  LoneModel rounded(rounded_config, folder, ops::best_isa(), 2, options);
  for (LoneModel* each : {&exact, &rounded}) each->ctx.set_activations(rounding.activations);
  const auto tokenizer = Tokenizer::load(model);
  const auto vocab = static_cast<size_t>(config.vocab_size);
  Cost cost;
  for (const auto& tokens : windows_of(*tokenizer, texts)) {
    const auto a = exact.run(tokens, 0, block_ids(0, 16));
    const auto b = rounded.run(tokens, 0, block_ids(0, 16));
    for (size_t row = 0; row + 1 < tokens.size(); ++row) {
      compare_row(std::span(a).subspan(row * vocab, vocab),
                  std::span(b).subspan(row * vocab, vocab),
                  tokens[row + 1],
                  cost);
    }
  }
  return cost;
}

void expect_small(const char* name, const Rounding& rounding, const Cost& cost) {
  const auto rows = static_cast<double>(cost.num_rows);
  const double exact = std::exp(cost.exact_loss / rows);
  const double rounded = std::exp(cost.rounded_loss / rows);
  const double same = static_cast<double>(cost.num_same_top) / rows;
  std::printf(
      "%s, %d tokens: perplexity %.3f, with %s %.3f (%+.3f%%); KL %.2e nats; same "
      "likeliest token in %.2f%%; next token's log-probability differs by %.1e, at most %.2f\n",
      name,
      static_cast<int>(cost.num_rows),
      exact,
      rounding.name,
      rounded,
      100 * (rounded / exact - 1),
      cost.kl / rows,
      100 * same,
      cost.difference / rows,
      cost.largest_difference);
  EXPECT_GE(cost.num_rows, 4000);
  EXPECT_LE(std::abs(rounded / exact - 1), rounding.most_loss);
  EXPECT_LE(cost.kl / rows, rounding.most_kl);
  EXPECT_GE(cost.kl / rows, 1e-7);  // else nothing was rounded
  EXPECT_GE(same, rounding.least_same);
}

TEST(QuantizationQuality, OnTrainedModels) {
  const auto data = data_dir();
  if (!data) GTEST_SKIP() << "no ../shared/data and no OUTRIDER_DATA";
  const auto embedded = std::filesystem::path(OUTRIDER_SOURCE_DIR) / "models" / "embedded";
  for (const Rounding& rounding : {Rounding{"int8", 8, 128, 0.01, 0.95},
                                   {"int4 of 32", 4, 32, 0.21, 0.68, 0.2},
                                   {"int4 of 128", 4, 128, 0.28, 0.63, 0.2},
                                   {.name = "KV in bfloat16",
                                   .most_kl = 5e-4,
                                   .least_same = 0.985,
                                   .most_loss = 0.001,
                                   .kv_type = ops::KvType::kBF16},
                                   {.name = "KV in bfloat16, rounded products",
                                   .most_kl = 5e-4,
                                   .least_same = 0.985,
                                   .most_loss = 0.001,
                                   .kv_type = ops::KvType::kBF16,
                                   .activations = ops::Activations::kBF16},
                                   {.name = "KV in int8, rounded products",
                                   .most_kl = 1e-2,
                                   .least_same = 0.93,
                                   .most_loss = 0.002,
                                   .kv_type = ops::KvType::kInt8,
                                   .activations = ops::Activations::kBF16},
                                   {.name = "KV in int8",
                                   .most_kl = 1e-2,
                                   .least_same = 0.93,
                                   .most_loss = 0.002,
                                   .kv_type = ops::KvType::kInt8}}) {
    for (const auto& [name, folder] : {std::pair{"embedded target", embedded / "target"},
                                       {"stories260K", *data / "models" / "stories260K"}})
      expect_small(name, rounding, cost_of(folder, *data / "text", rounding));
  }
}

}  // namespace
}  // namespace outrider::test
