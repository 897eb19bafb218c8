// See acceptance.h.
#include "runtime/commands/synth/acceptance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <numeric>

#include "models/checkpoint/checkpoint_plan.h"
#include "models/checkpoint/weight_names.h"
#include "models/synthetic/tokenizer.h"
#include "models/weights/pieces.h"
#include "models/weights/weight_reader.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/ranks/loading/model_probe.h"

namespace outrider {
namespace {

constexpr int32_t kPromptTokens = 5;  // <s> and four words
constexpr int32_t kBlockSize = 16;
constexpr uint64_t kTextSeed = 0x7E47;
constexpr size_t kMargin = size_t{300} << 20;  // threads, buffers of the loader, the program

int32_t blocks_per_text(const AcceptanceOptions& options) {
  return (kPromptTokens + options.tokens_per_text + kBlockSize - 1) / kBlockSize;
}

TransformerOptions sizes_of(const AcceptanceOptions& options) {
  return {.block_size = kBlockSize,
          .num_blocks = options.num_texts * blocks_per_text(options),
          .max_rows = options.num_texts * kPromptTokens,
          .max_logit_rows = options.num_texts};
}

// What the system says can still be had; all of it where it does not say.
size_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kilobytes = 0;
  for (std::string unit; file >> key >> kilobytes; std::getline(file, unit)) {
    if (key == "MemAvailable:") return kilobytes << 10;
  }
  return SIZE_MAX;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

int32_t greatest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The token at which the running sum passes u.
int32_t draw(const std::vector<double>& probs, double u) {
  double sum = 0;
  for (size_t token = 0; token < probs.size(); ++token) {
    sum += probs[token];
    if (u < sum) return static_cast<int32_t>(token);
  }
  return static_cast<int32_t>(probs.size()) - 1;
}

double depth_of(double acceptance) { return -std::log(std::clamp(acceptance, 1e-3, 1.0)) + 1e-9; }

}  // namespace

size_t SyntheticPair::bytes_needed(const ModelConfig& target,
                                   const SyntheticRecipe& recipe,
                                   const AcceptanceOptions& options) {
  size_t num_elements = 0;
  for (const TensorShape& tensor : checkpoint_tensors(target)) {
    num_elements += static_cast<size_t>(
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>()));
  }
  const auto num_blocks = static_cast<size_t>(sizes_of(options).num_blocks);
  size_t kv = 0;
  for (const ModelConfig& config : {target, first_layers(target, recipe.num_strong_layers)}) {
    kv +=
        num_blocks * Transformer::kv_bytes_per_block(config, shard_model(config, 0, 1), kBlockSize);
  }
  const size_t logits = 2 * sizeof(float) * static_cast<size_t>(options.num_texts) *
                        static_cast<size_t>(target.vocab_size);
  return num_elements * ops::dtype_bytes(recipe.dtype) + kv + logits + kMargin;
}

SyntheticPair::SyntheticPair(const ModelConfig& target,
                             const SyntheticRecipe& recipe,
                             const AcceptanceOptions& options)
    : target_config_(target),
      draft_config_(first_layers(target, recipe.num_strong_layers)),
      recipe_(recipe),
      options_(options),
      context_(options.num_threads, options.isa),
      group_(make_solo_group()) {
  context_.set_activations(options.activations);
  const size_t needed = bytes_needed(target, recipe, options);
  const size_t available = available_bytes();
  if (needed > available) {
    throw Error(
        fmt::format("measuring needs {} MB of memory and {} are free: give --epsilon and "
                    "--positions 0 to write the models without it",
                    needed >> 20,
                    available >> 20));
  }
  const ModelShard shard = shard_model(target_config_, 0, 1);
  weights_ = synthetic_weights(target_config_, shard, recipe_);
  const TransformerOptions sizes = sizes_of(options_);
  target_ =
      std::make_unique<Transformer>(target_config_, weights_, shard, sizes, *group_, context_);
  draft_ = std::make_unique<Transformer>(
      draft_config_, weights_, shard_model(draft_config_, 0, 1), sizes, *group_, context_);
}

SyntheticPair::~SyntheticPair() = default;

void SyntheticPair::set_epsilon(double epsilon) {
  if (epsilon == recipe_.epsilon) return;
  recipe_.epsilon = epsilon;
  const auto source = make_synthetic_source(target_config_, recipe_);
  const int64_t hidden = target_config_.hidden_dim;
  const int64_t attended = int64_t{target_config_.n_heads} * target_config_.head_dim;
  std::vector<PlannedPart> parts;
  for (int32_t l = recipe_.num_strong_layers; l < target_config_.n_layers; ++l) {
    const LayerNames names(l);
    LayerWeights& layer = weights_->layers[static_cast<size_t>(l)];
    const auto add = [&](const std::vector<Piece>& pieces, int64_t n_in, ops::PackedMatrix& to) {
      int64_t first_row = 0;
      for (const Piece& piece : pieces) {
        first_row += piece.zeros_before;
        parts.push_back({.part = {piece.name + ".weight", n_in, piece.rows, {0, n_in}},
                         .dtype = recipe_.dtype,
                         .packed = &to,
                         .first_row = first_row});
        first_row += piece.rows.size();
      }
    };
    add({{names.o(), hidden, {0, hidden}}}, attended, layer.o);
    if (target_config_.has_experts(l)) {
      add(expert_down_pieces(target_config_, names), target_config_.experts.ffn_dim, layer.down);
    } else {
      add({{names.down(), hidden, {0, hidden}}}, target_config_.ffn_dim, layer.down);
    }
  }
  read_parts(*source, parts, options_.num_threads, {});
}

std::vector<int32_t> SyntheticPair::next_tokens(std::span<const float> target_logits,
                                                std::span<const float> draft_logits,
                                                int32_t position,
                                                std::vector<double>& sums) const {
  const auto vocab = static_cast<size_t>(target_config_.vocab_size);
  std::vector<int32_t> tokens;
  for (size_t text = 0; text < sums.size(); ++text) {
    const auto target = target_logits.subspan(text * vocab, vocab);
    const auto draft = draft_logits.subspan(text * vocab, vocab);
    if (options_.temperature == 0) {
      tokens.push_back(greatest(target));
      sums[text] += tokens.back() == greatest(draft) ? 1.0 : 0.0;
      continue;
    }
    const std::vector<double> target_prob = softmax(target, options_.temperature);
    const std::vector<double> draft_prob = softmax(draft, options_.temperature);
    for (size_t i = 0; i < vocab; ++i) sums[text] += std::min(target_prob[i], draft_prob[i]);
    const NoiseKey key{kTextSeed, static_cast<uint32_t>(position), Stream::kResidual};
    const uint32_t bits = noise_bits(key, static_cast<int32_t>(text));
    tokens.push_back(draw(target_prob, uniform_from_bits(bits)));
  }
  return tokens;
}

Acceptance SyntheticPair::measure(const std::function<void(int32_t, int32_t)>& progress) {
  const int32_t num_texts = options_.num_texts;
  const int32_t per_text = blocks_per_text(options_);
  std::vector<int32_t> blocks(static_cast<size_t>(num_texts * per_text));
  std::iota(blocks.begin(), blocks.end(), 0);
  Batch batch;
  const auto append = [&batch](int32_t token, int32_t position, int32_t text) {
    batch.tokens.push_back(token);
    batch.positions.push_back(position);
    batch.sequence_of_row.push_back(text);
  };
  // Words only: special and byte tokens are not what a text is made of.
  const int32_t num_words = target_config_.vocab_size - recipe_.num_silent_ids;
  for (int32_t text = 0; text < num_texts; ++text) {
    batch.block_tables.push_back(std::span(blocks).subspan(static_cast<size_t>(text * per_text),
                                                           static_cast<size_t>(per_text)));
    for (int32_t at = 0; at < kPromptTokens; ++at) {
      const NoiseKey key{kTextSeed, static_cast<uint32_t>(at), Stream::kDraft};
      const auto word =
          static_cast<int32_t>(noise_bits(key, text) % static_cast<uint32_t>(num_words));
      append(at == 0 ? kSyntheticBosId : recipe_.num_silent_ids + word, at, text);
    }
    batch.logit_rows.push_back(text * kPromptTokens + kPromptTokens - 1);
  }
  std::vector<double> sums(static_cast<size_t>(num_texts), 0.0);
  for (int32_t step = 0; step < options_.tokens_per_text; ++step) {
    const std::span<const float> target_logits = target_->forward(batch);
    const std::span<const float> draft_logits = draft_->forward(batch);
    const int32_t position = kPromptTokens + step;
    const std::vector<int32_t> tokens = next_tokens(target_logits, draft_logits, position, sums);
    if (progress) progress(step + 1, options_.tokens_per_text);
    batch.tokens.clear();
    batch.positions.clear();
    batch.sequence_of_row.clear();
    for (int32_t text = 0; text < num_texts; ++text) {
      append(tokens[static_cast<size_t>(text)], position, text);
      batch.logit_rows[static_cast<size_t>(text)] = text;
    }
  }
  for (double& sum : sums) sum /= options_.tokens_per_text;
  Acceptance found{.mean = mean_of(sums),
                   .num_positions = int64_t{num_texts} * options_.tokens_per_text};
  double squares = 0;
  for (const double mean : sums) squares += (mean - found.mean) * (mean - found.mean);
  found.standard_error = std::sqrt(squares / (num_texts * std::max(1.0, num_texts - 1.0)));
  return found;
}

double guess_epsilon(double alpha, int32_t num_later_layers) {
  struct Point {
    double epsilon;
    double acceptance;
  };
  constexpr std::array<Point, 6> kMeasured = {
      {{0, 1}, {0.02, 0.887}, {0.04, 0.79}, {0.09, 0.586}, {0.2, 0.3}, {1, 0}}};
  size_t i = 1;
  while (i + 1 < kMeasured.size() && kMeasured[i].acceptance > alpha) ++i;
  const Point& a = kMeasured[i - 1];
  const Point& b = kMeasured[i];
  const double share = (a.acceptance - alpha) / (a.acceptance - b.acceptance);
  // Contributions of the layers add up like random vectors.
  const double scale = std::sqrt(20.0 / std::max(1, num_later_layers));
  return std::min(1.0, (a.epsilon + share * (b.epsilon - a.epsilon)) * scale);
}

std::vector<EpsilonTrial> find_epsilon(double alpha,
                                       double first_guess,
                                       int max_trials,
                                       const std::function<Acceptance(double)>& measure) {
  std::vector<EpsilonTrial> trials;
  const auto miss = [alpha](const EpsilonTrial& trial) {
    return std::abs(trial.acceptance.mean - alpha);
  };
  EpsilonTrial low{0.0, {.mean = 1.0}};  // accepted more often than wanted
  EpsilonTrial high{-1.0, {}};           // less often; none yet
  double epsilon = first_guess;
  while (static_cast<int>(trials.size()) < max_trials) {
    const EpsilonTrial trial{epsilon, measure(epsilon)};
    trials.push_back(trial);
    if (miss(trial) <= std::max(0.01, trial.acceptance.standard_error)) return trials;
    (trial.acceptance.mean > alpha ? low : high) = trial;
    if (low.epsilon >= 1.0) {
      throw Error(
          fmt::format("even with epsilon 1 the draft is accepted {:.3f} of the time, more "
                      "than the {:.3f} asked for: use more layers or fewer for the draft",
                      low.acceptance.mean,
                      alpha));
    }
    // The logarithm of the acceptance falls about in proportion to epsilon.
    const double from = depth_of(low.acceptance.mean);
    if (high.epsilon < 0) {
      epsilon = std::min(1.0, low.epsilon * std::clamp(depth_of(alpha) / from, 1.05, 4.0));
    } else {
      const double to = std::max(depth_of(high.acceptance.mean), from + 1e-6);
      const double share = (depth_of(alpha) - from) / (to - from);
      epsilon = low.epsilon + std::clamp(share, 0.05, 0.95) * (high.epsilon - low.epsilon);
    }
  }
  std::stable_sort(trials.begin(), trials.end(), [&](const auto& a, const auto& b) {
    return miss(a) > miss(b);
  });
  return trials;
}

}  // namespace outrider
