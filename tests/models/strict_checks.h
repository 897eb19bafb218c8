// Promise P3: under numerics strict the logits have the same bits on 1, 2, 4 and 8 target ranks.
// Models of awkward shapes and one script of steps, run by each member of a group; used over
// threads and over MPI.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "models/checkpoint/weight_names.h"
#include "models/synthetic/synthetic.h"
#include "runtime/base/error.h"
#include "tests/models/model_test_util.h"

namespace outrider::test {

struct StrictModel {
  std::string name;
  ModelConfig config;
  ops::DType dtype = ops::DType::kBF16;
  bool embedded = false;  // the target of the embedded pair instead of random weights
};

inline ModelConfig strict_shape(int32_t n_heads, int32_t n_kv_heads, int32_t head_dim) {
  ModelConfig config = synthetic_shape("tinyllama-1.1b@2");
  config.hidden_dim = 96;
  config.n_heads = n_heads;
  config.n_kv_heads = n_kv_heads;
  config.head_dim = head_dim;
  config.rope.rotary_dim = head_dim;
  config.ffn_dim = 259;
  config.vocab_size = 517;
  config.max_positions = 512;
  return config;
}

inline std::vector<StrictModel> awkward_models() {
  std::vector<StrictModel> models;
  const auto add = [&models](const char* name, ModelConfig config, ops::DType dtype) -> auto& {
    models.push_back({name, std::move(config), dtype, false});
    return models.back().config;
  };
  ModelConfig& biased = add("biases, odd ffn", strict_shape(8, 4, 16), ops::DType::kBF16);
  biased.attention_bias = biased.attention_out_bias = biased.mlp_bias = true;
  ModelConfig& normed = add("q/k norm, 2 KV heads", strict_shape(16, 2, 10), ops::DType::kF32);
  normed.qk_norm = true;
  normed.ffn_dim = 131;
  ModelConfig& uneven = add("3 KV heads, tied head", strict_shape(24, 3, 8), ops::DType::kF16);
  uneven.ffn_dim = 642;
  uneven.tied_head = true;
  ModelConfig& few = add("5 heads, 37 ffn units", strict_shape(5, 5, 32), ops::DType::kF32);
  few.ffn_dim = 37;
  few.vocab_size = 65;
  ModelConfig& lone = add("one KV head, window", strict_shape(9, 1, 6), ops::DType::kBF16);
  lone.sliding_window = 20;
  lone.attention_bias = true;
  ModelConfig& wide = add("slices beyond a chunk", strict_shape(8, 8, 96), ops::DType::kBF16);
  wide.ffn_dim = 2802;
  wide.n_layers = 1;
  models.push_back({"embedded", load_model_config(embedded_target()), ops::DType::kBF16, true});
  return models;
}

// Weights in integers: activations are rounded slice by slice, so strict and fast are not close.
inline std::vector<StrictModel> integer_models() {
  StrictModel untied = {"8-bit weights, odd ffn", strict_shape(8, 4, 24)};
  untied.config.load_format = {.bits = 8, .group_size = 128};
  StrictModel tied = {"8-bit weights, tied head", strict_shape(16, 2, 8), ops::DType::kF32};
  tied.config.load_format = {.bits = 8, .group_size = 32};
  tied.config.ffn_dim = 642;
  tied.config.tied_head = true;
  StrictModel nibbles = {"4-bit weights", strict_shape(8, 8, 16), ops::DType::kF16};
  nibbles.config.load_format = {.bits = 4, .group_size = 64};
  return {untied, tied, nibbles};
}

// Random weights, but every third element of the embedding is a zero with a sign.
class SignedZeros : public TensorSource {
 public:
  SignedZeros(const ModelConfig& config, ops::DType dtype)
      : source_(
            make_synthetic_source(config, {.epsilon = 0.5, .num_silent_ids = 0, .dtype = dtype})) {}

  ops::DType expect(const std::string& name, const std::vector<int64_t>& shape) const override {
    return source_->expect(name, shape);
  }
  void read(const TensorPart& part, std::byte* out) const override {
    source_->read(part, out);
    if (part.name != kEmbeddingName) return;
    const size_t size = ops::dtype_bytes(expect(part.name, {}));
    const auto width = static_cast<size_t>(part.columns.size());
    const size_t count = static_cast<size_t>(part.rows.size()) * width;
    for (size_t i = 0; i < count; ++i) {
      if (i % width % 3 != 0) continue;
      std::memset(out + i * size, 0, size);
      out[i * size + size - 1] = std::byte{0x80};
    }
  }

 private:
  std::unique_ptr<TensorSource> source_;
};

inline std::unique_ptr<Weights> weights_of(const StrictModel& model, const ModelShard& shard) {
  if (!model.embedded)
    return build_weights(model.config, shard, SignedZeros(model.config, model.dtype));
  return load_weights(embedded_target(), model.config, shard);
}

// Rows [first, first + count) of a sequence and how many of the last of them give logits.
struct StrictPiece {
  int sequence;
  int32_t first;
  int32_t count;
  int32_t num_logits;
};

// Prompt chunks, single rows, rows of a verification, and mixtures, of two sequences.
inline const std::vector<std::vector<StrictPiece>> kStrictScript = {
    {{0, 0, 37, 37}},
    {{0, 37, 103, 3}},
    {{0, 140, 1, 1}},
    {{1, 0, 5, 5}, {0, 141, 1, 1}},
    {{0, 142, 5, 5}},
    {{1, 5, 1, 1}, {0, 145, 5, 5}},
};

inline Batch strict_batch(const std::vector<StrictPiece>& step,
                          const std::vector<std::vector<int32_t>>& texts,
                          const std::vector<std::vector<int32_t>>& blocks) {
  Batch batch;
  for (const StrictPiece& piece : step) {
    const auto index = static_cast<size_t>(piece.sequence);
    const auto text = std::span(texts[index]);
    append_rows(batch,
                text.subspan(static_cast<size_t>(piece.first), static_cast<size_t>(piece.count)),
                piece.first,
                blocks[index]);
    const auto end = static_cast<int32_t>(batch.tokens.size());
    for (int32_t row = end - piece.num_logits; row < end; ++row) batch.logit_rows.push_back(row);
  }
  return batch;
}

inline constexpr ModelOptions kStrictOptions = {
    .block_size = 16, .num_blocks = 16, .max_rows = 128, .max_logit_rows = 64};

// Logits of all steps, [rows, whole vocabulary], on every member.
inline std::vector<float> play_script(Model& model, TargetGroup& group) {
  std::mt19937 generator(5);
  std::vector<std::vector<int32_t>> texts(2);
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  for (auto& text : texts) {
    for (int i = 0; i < 160; ++i) text.push_back(static_cast<int32_t>(generator() % vocab));
  }
  const std::vector<std::vector<int32_t>> blocks = {{5, 0, 9, 2, 3, 14, 1, 7, 11, 4}, {8, 6}};
  std::vector<float> logits;
  const Range& own = model.shard().vocab;
  const auto width = static_cast<size_t>(own.size());
  for (const auto& step : kStrictScript) {
    const std::span<const float> part = model.forward(strict_batch(step, texts, blocks));
    // Each element has one member that knows it, so the sum of the bits puts them together.
    std::vector<uint64_t> bits(part.size() / width * vocab);
    for (size_t i = 0; i < part.size(); ++i) {
      bits[i / width * vocab + static_cast<size_t>(own.begin) + i % width] =
          std::bit_cast<uint32_t>(part[i]);
    }
    group.all_reduce_sum(std::span<uint64_t>(bits));
    for (const uint64_t value : bits) {
      logits.push_back(std::bit_cast<float>(static_cast<uint32_t>(value)));
    }
  }
  return logits;
}

// On the CPU. Members differ in instruction sets and numbers of threads, which must not matter
// either.
inline std::vector<float> run_script(const StrictModel& model,
                                     TargetGroup& group,
                                     Numerics numerics,
                                     ops::Activations activations = ops::Activations::kF32,
                                     ops::KvType kv_type = ops::KvType::kF32) {
  const ModelShard shard = shard_model(model.config, group.rank(), group.size(), numerics);
  const auto isas = available_isas();
  ops::Context ctx(1 + group.rank() % 2,
                   isas[(isas.size() - 1 + static_cast<size_t>(group.rank())) % isas.size()]);
  ctx.set_activations(activations);
  ModelOptions options = kStrictOptions;
  options.kv_type = kv_type;
  Transformer transformer(model.config, weights_of(model, shard), shard, options, group, ctx);
  return play_script(transformer, group);
}

inline bool fits(const StrictModel& model, int num_ranks) {
  try {
    shard_model(model.config, 0, num_ranks, Numerics::kStrict);
    return true;
  } catch (const Error&) {
    return false;
  }
}

inline bool same_logit_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Otherwise equality would be a test of nothing.
inline void expect_real_logits(const std::vector<float>& logits) {
  double sum = 0;
  double squares = 0;
  for (const float value : logits) {
    sum += value;
    squares += double{value} * value;
  }
  const double mean = sum / static_cast<double>(logits.size());
  const double deviation = std::sqrt(squares / static_cast<double>(logits.size()) - mean * mean);
  EXPECT_GT(deviation, 0.1);
  EXPECT_LT(deviation, 1e3);
}

}  // namespace outrider::test
