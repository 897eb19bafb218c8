// Checkpoints in integers against what transformers computes from the weights they stand for: the
// tiny models of tests/golden/quantized (made by tools/make_quantized_golden.py and
// make_mxfp4_golden.py), in every layout, for each instruction set and for several ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "models/checkpoint/weight_names.h"
#include "models/weights/quantized_tensors.h"
#include "runtime/base/error.h"
#include "runtime/comm/world/world.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

std::filesystem::path quantized_dir() {
  return std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests" / "golden" / "quantized";
}

std::vector<float> read_floats(const std::filesystem::path& path) {
  const std::string raw = read_bytes(path);
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), raw.size());
  return values;
}

struct Golden {
  std::filesystem::path dir;
  std::vector<int32_t> text;  // prompt and continuation without the last token
  std::vector<int32_t> positions;
  std::map<std::string, std::string> hashes;  // of each projection's weights
  std::vector<float> logits;                  // [positions, vocab]
  std::vector<float> rounded;                 // with inputs of integer products rounded too

  explicit Golden(const std::string& name) : dir(quantized_dir() / name) {
    const auto json = nlohmann::json::parse(read_bytes(dir / "golden.json"));
    text = json.at("prompt").get<std::vector<int32_t>>();
    const auto greedy = json.at("greedy").get<std::vector<int32_t>>();
    text.insert(text.end(), greedy.begin(), greedy.end() - 1);
    positions = json.at("logit_positions").get<std::vector<int32_t>>();
    hashes = json.at("projections").get<std::map<std::string, std::string>>();
    logits = read_floats(dir / "logits.f32");
    rounded = read_floats(dir / "rounded.f32");
  }
};

// The rows of the kept positions, [positions, vocab].
std::vector<float> kept(const Golden& golden, std::span<const float> all, size_t vocab) {
  std::vector<float> rows;
  for (const int32_t position : golden.positions) {
    const auto row = all.subspan(static_cast<size_t>(position) * vocab, vocab);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

std::string fnv1a(std::span<const float> values) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const float value : values) {
    hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3u;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// Matrices of all experts of a layer together.
std::vector<Projection> mxfp4_projections(const ModelConfig& config) {
  std::vector<Projection> all;
  const int64_t rows = int64_t{config.experts.count} * config.hidden_dim;
  const int64_t units = int64_t{config.experts.count} * config.experts.ffn_dim;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const LayerNames names(layer, config.names);
    all.push_back({names.prefix + config.names.experts_gate_up, 2 * units, config.hidden_dim});
    all.push_back({names.prefix + config.names.experts_down, rows, config.experts.ffn_dim});
  }
  return all;
}

// The projections of a model with their sizes.
std::vector<Projection> projections_of(const ModelConfig& config) {
  if (config.quantization.layout == WeightLayout::kMxfp4) return mxfp4_projections(config);
  std::vector<Projection> all;
  const int64_t heads = int64_t{config.n_heads} * config.head_dim;
  const int64_t kv = int64_t{config.n_kv_heads} * config.head_dim;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const LayerNames names(layer, config.names);
    all.push_back({names.q(), heads, config.hidden_dim});
    all.push_back({names.k(), kv, config.hidden_dim});
    all.push_back({names.v(), kv, config.hidden_dim});
    all.push_back({names.o(), config.hidden_dim, heads});
    if (!config.has_experts(layer)) {
      all.push_back({names.gate(), config.ffn_dim, config.hidden_dim});
      all.push_back({names.up(), config.ffn_dim, config.hidden_dim});
      all.push_back({names.down(), config.hidden_dim, config.ffn_dim});
      continue;
    }
    const int64_t ffn = config.experts.ffn_dim;
    for (int32_t e = 0; e < config.experts.count; ++e) {
      all.push_back({names.expert(e, config.names.expert_gate), ffn, config.hidden_dim});
      all.push_back({names.expert(e, config.names.expert_up), ffn, config.hidden_dim});
      all.push_back({names.expert(e, config.names.expert_down), config.hidden_dim, ffn});
    }
  }
  return all;
}

class QuantizedGolden : public testing::TestWithParam<std::string> {};

TEST(QuantizedGoldens, EveryLayoutIsThere) {
  std::set<WeightLayout> layouts;
  for (const std::string& name : model_names(quantized_dir())) {
    layouts.insert(load_model_config(quantized_dir() / name).quantization.layout);
  }
  EXPECT_EQ(layouts.size(), 5u);
  EXPECT_FALSE(layouts.contains(WeightLayout::kPlain));
}

TEST_P(QuantizedGolden, WeightsAreExactlyThoseThatWerePacked) {
  const Golden golden(GetParam());
  const ModelConfig config = load_model_config(golden.dir);
  const Checkpoint checkpoint(golden.dir);
  const QuantizedTensors tensors(checkpoint, config.quantization);
  const auto projections = projections_of(config);
  ASSERT_EQ(projections.size(), golden.hashes.size());
  std::set<std::string> distinct;
  for (const Projection& projection : projections) {
    ASSERT_TRUE(tensors.has(projection.name)) << projection.name;
    EXPECT_EQ(tensors.n_out(projection.name), projection.n_out);
    tensors.expect(projection);
    const QuantizedPart part =
        tensors.read(projection, {0, projection.n_out}, {0, projection.n_in});
    std::vector<float> weights(static_cast<size_t>(projection.n_out * projection.n_in));
    part.dequantize({0, projection.n_out}, weights.data());
    EXPECT_EQ(fnv1a(weights), golden.hashes.at(projection.name)) << projection.name;
    distinct.insert(fnv1a(weights));
  }
  EXPECT_EQ(distinct.size(), projections.size());
}

// Rectangles that begin and end within words and groups are cut-outs of the whole.
TEST_P(QuantizedGolden, PartsAreCutOutsOfTheWhole) {
  const Golden golden(GetParam());
  const ModelConfig config = load_model_config(golden.dir);
  const Checkpoint checkpoint(golden.dir);
  const QuantizedTensors tensors(checkpoint, config.quantization);
  std::mt19937 random(7);
  const auto range_of = [&random](int64_t n) {
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t begin = draw(0, n - 1);
    return Range{begin, draw(begin + 1, n)};
  };
  for (const Projection& projection : projections_of(config)) {
    const QuantizedPart whole =
        tensors.read(projection, {0, projection.n_out}, {0, projection.n_in});
    std::vector<float> all(static_cast<size_t>(projection.n_out * projection.n_in));
    whole.dequantize({0, projection.n_out}, all.data());
    for (int trial = 0; trial < 8; ++trial) {
      const Range rows = range_of(projection.n_out);
      const Range columns = range_of(projection.n_in);
      const QuantizedPart part = tensors.read(projection, rows, columns);
      std::vector<float> got(static_cast<size_t>(rows.size() * columns.size()));
      part.dequantize({0, rows.size()}, got.data());
      for (int64_t row = 0; row < rows.size(); ++row) {
        const float* expected = all.data() + (rows.begin + row) * projection.n_in + columns.begin;
        ASSERT_EQ(std::memcmp(got.data() + row * columns.size(),
                              expected,
                              static_cast<size_t>(columns.size()) * sizeof(float)),
                  0)
            << projection.name << " row " << rows.begin + row << " from " << columns.begin;
      }
    }
  }
}

// Integer products: the same integers and scales, so only a rounding of an input that falls the
// other way, where transformers' sum has another last bit, tells them apart.
TEST_P(QuantizedGolden, LogitsAreThoseOfTransformersWithInputsRoundedAlike) {
  const Golden golden(GetParam());
  std::vector<float> first;
  for (const ops::Isa isa : available_isas()) {
    LoneModel lone(golden.dir, isa);
    const auto vocab = static_cast<size_t>(lone.config.vocab_size);
    ASSERT_EQ(golden.rounded.size(), golden.positions.size() * vocab);
    const auto logits = kept(golden, lone.run(golden.text, 0, block_ids(0, 8)), vocab);
    EXPECT_LE(relative_rms(logits, golden.rounded), 4e-3) << ops::isa_name(isa);
    EXPECT_LE(relative_rms(logits, golden.logits), 6e-2) << ops::isa_name(isa);
    if (first.empty()) first = logits;
    EXPECT_EQ(std::memcmp(first.data(), logits.data(), logits.size() * sizeof(float)), 0)
        << ops::isa_name(isa);
  }
}

TEST_P(QuantizedGolden, MatricesHoldTheFilesIntegersWhereTheyCanBeRun) {
  const Golden golden(GetParam());
  const ModelConfig config = load_model_config(golden.dir);
  const auto weights = load_weights(golden.dir, config, shard_model(config, 0, 1));
  const std::string name = GetParam();
  const bool runs_in_floats = name.find("act-order") != std::string::npos ||
                              name == "gptq-8bit-zeros" || name == "ct-int8-zeros";
  for (const LayerWeights& layer : weights->layers) {
    for (const ops::PackedMatrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      if (name == "mxfp4" && (matrix == &layer.qkv || matrix == &layer.o)) {
        EXPECT_FALSE(matrix->is_quantized());
        continue;
      }
      EXPECT_EQ(matrix->is_quantized(), !runs_in_floats);
      if (matrix->is_quantized()) {
        EXPECT_EQ(matrix->quant_format().bits, config.quantization.num_bits);
      }
    }
  }
  EXPECT_FALSE(weights->head.is_quantized());
}

// One rank's part of the logits of every position, put into its columns of `all`.
void run_rank(const Golden& golden,
              TargetGroup& group,
              Numerics numerics,
              std::vector<float>& all) {
  const ModelConfig config = load_model_config(golden.dir);
  const ModelShard shard = shard_model(config, group.rank(), group.size(), numerics);
  ops::Context ctx(1);
  Transformer model(config,
                    load_weights(golden.dir, config, shard),
                    shard,
                    {.block_size = 16, .num_blocks = 8, .max_rows = 128, .max_logit_rows = 128},
                    group,
                    ctx);
  const auto blocks = block_ids(0, 8);
  Batch batch;
  append_rows(batch, golden.text, 0, blocks);
  batch.logit_rows = block_ids(0, static_cast<int32_t>(golden.text.size()));
  const auto part = model.forward(batch);
  const auto width = static_cast<size_t>(shard.vocab.size());
  const auto vocab = static_cast<size_t>(config.vocab_size);
  for (size_t row = 0; row < golden.text.size(); ++row) {
    std::memcpy(all.data() + row * vocab + static_cast<size_t>(shard.vocab.begin),
                part.data() + row * width,
                width * sizeof(float));
  }
}

std::vector<float> run_ranks(const Golden& golden, int num_ranks, Numerics numerics) {
  const ModelConfig config = load_model_config(golden.dir);
  std::vector<float> all(golden.text.size() * static_cast<size_t>(config.vocab_size),
                         std::nanf(""));
  run_in_process(num_ranks, [&](World& world) {
    const auto group = world.make_target_group(num_ranks);
    run_rank(golden, *group, numerics, all);
  });
  return all;
}

// A cut within a stretch of inputs that share a scale makes two of it, so roundings differ.
TEST_P(QuantizedGolden, RanksAgreeWithOneRank) {
  const Golden golden(GetParam());
  const auto expected = run_ranks(golden, 1, Numerics::kFast);
  for (const int num_ranks : {2, 3, 4}) {
    const auto got = run_ranks(golden, num_ranks, Numerics::kFast);
    EXPECT_LE(relative_rms(got, expected), 5e-2) << num_ranks << " ranks";
  }
}

TEST_P(QuantizedGolden, StrictHasTheSameBitsOnAnyNumberOfRanks) {
  const Golden golden(GetParam());
  const auto expected = run_ranks(golden, 1, Numerics::kStrict);
  EXPECT_LE(relative_rms(expected, run_ranks(golden, 1, Numerics::kFast)), 5e-2);
  for (const int num_ranks : {2, 4}) {
    const auto got = run_ranks(golden, num_ranks, Numerics::kStrict);
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
        << num_ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         QuantizedGolden,
                         testing::ValuesIn(model_names(quantized_dir())),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
