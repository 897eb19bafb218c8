// The forward pass on a GPU against the CPU's, and its own promises: bits that do not
// depend on what shares a step, on graphs, or under numerics strict on the number of ranks.
#include "models/weights/e4m3_weights.h"
#include "runtime/comm/world/world.h"
#include "tests/gpu/model_case.h"
#include "tests/gpu/wrapped_device.h"

namespace outrider::test {
namespace {

using Format = GpuWeightFormat;

StrictModel small(const char* name, ops::DType dtype) {
  StrictModel model = {name, strict_shape(4, 2, 16), dtype};
  model.config.hidden_dim = 64;
  model.config.ffn_dim = 88;
  model.config.vocab_size = 75;
  return model;
}

void add_experts(ModelConfig& config) {
  config.experts = {.count = 6,
                    .per_row = 2,
                    .ffn_dim = 52,
                    .shared_ffn_dim = 37,
                    .shared_gate = true,
                    .normalised = true,
                    .dense_layers = {true, false}};
}

// The switches that a model can have, over as few numbers as show them.
std::vector<StrictModel> small_models() {
  std::vector<StrictModel> models = {small("plain, bf16", ops::DType::kBF16),
                                     small("biases, f16", ops::DType::kF16),
                                     small("q/k norm, f32", ops::DType::kF32),
                                     small("partial rotary, tied, bf16", ops::DType::kBF16),
                                     small("window from layer 1, f32", ops::DType::kF32),
                                     small("odd sizes, tied, f16", ops::DType::kF16),
                                     small("sinks, bf16", ops::DType::kBF16),
                                     small("latent, biases, bf16", ops::DType::kBF16),
                                     small("latent, f32", ops::DType::kF32),
                                     small("experts, bf16", ops::DType::kBF16)};
  models[1].config.attention_bias = models[1].config.attention_out_bias = true;
  models[1].config.mlp_bias = true;
  models[2].config.qk_norm = true;
  models[3].config.rope.rotary_dim = 8;
  models[3].config.tied_head = true;
  models[4].config.sliding_window = 20;
  models[4].config.full_layers = {true, false};
  models[5].config.hidden_dim = 72;
  models[5].config.head_dim = models[5].config.rope.rotary_dim = 24;
  models[5].config.ffn_dim = 37;
  models[5].config.tied_head = true;
  models[6].config.names.sinks = "self_attn.sinks";
  models[7].config.attention_bias = models[7].config.attention_out_bias = true;
  for (size_t i : {size_t{7}, size_t{8}}) {
    ModelConfig& config = models[i].config;
    config.latent = {.kv_rank = 40, .q_rank = 48, .nope_dim = 20, .rope_dim = 8, .value_dim = 16};
    config.n_kv_heads = 1;
    config.head_dim = 48;
    config.rope.rotary_dim = 8;
    config.rope.interleaved = i == 7;
    config.attention_scale = 0.2f;
  }
  models[8].config.latent.q_rank = 0;
  add_experts(models[9].config);
  return models;
}

// Relative, over all rows; NaN counts as far.
double distance(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return HUGE_VAL;
  double apart = 0;
  double all = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    apart += std::pow(double{found[i]} - expected[i], 2);
    all += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(apart / all);
}

std::vector<float> on_cpu(const StrictModel& model) {
  const auto group = make_solo_group();
  return run_script(model, *group, Numerics::kFast);
}

std::vector<float> on_gpu(const StrictModel& model,
                          Format format = Format::kAuto,
                          bool enforce_eager = false) {
  const auto group = make_solo_group();
  CaseModel gpu(model, *group, Numerics::kFast, format, enforce_eager);
  return play_script(*gpu.model, *group);
}

std::vector<float> on_ranks(const StrictModel& model, int num_ranks, Numerics numerics) {
  std::vector<float> logits;
  run_in_process(num_ranks, [&](World& world) {
    const auto group = world.make_target_group(num_ranks);
    CaseModel gpu(model, *group, numerics);
    std::vector<float> own = play_script(*gpu.model, *group);
    if (group->rank() == 0) logits = std::move(own);
  });
  return logits;
}

// A text's rows [first, first + count) in a step of their own, or behind another sequence's.
// look: called until it says no, while the step runs.
std::vector<float> logits_of(Model& model,
                             int32_t first,
                             int32_t count,
                             int32_t num_others = 0,
                             const std::function<bool()>& look = {}) {
  static const std::vector<int32_t> own_blocks = {5, 0, 9};
  static const std::vector<int32_t> other_blocks = {7, 2};
  Batch batch;
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 48; ++i) text.push_back(i * 7 % 75);
  if (num_others > 0) {
    append_rows(batch, std::span(text).last(static_cast<size_t>(num_others)), 0, other_blocks);
  }
  const auto from = static_cast<size_t>(first);
  append_rows(batch, std::span(text).subspan(from, static_cast<size_t>(count)), first, own_blocks);
  for (int32_t i = 0; i < count; ++i) batch.logit_rows.push_back(num_others + i);
  model.begin(batch);
  while (look && look()) continue;
  const std::span<const float> logits = model.finish();
  return {logits.begin(), logits.end()};
}

TEST(GpuTransformer, ComputesWhatTheCpuComputes) {
  for (const StrictModel& model : small_models()) {
    const std::vector<float> expected = on_cpu(model);
    expect_real_logits(expected);
    const double tolerance = model.dtype == ops::DType::kF32 ? 1e-5 : 1e-2;
    const double found = distance(on_gpu(model), expected);
    EXPECT_TRUE(found <= tolerance) << model.name << ": " << found;
    const double wide = distance(on_gpu(model, Format::kF32), expected);
    EXPECT_TRUE(wide <= 1e-5) << model.name << " in f32: " << wide;
  }
}

// A verification of 17 rows gives the bits of 17 single steps, behind other rows or not, and what
// it leaves in the pages too; the graph of the second time gives those of the first.
TEST(GpuTransformer, RowsDoNotDependOnWhatSharesTheirStep) {
  for (const StrictModel& source :
       {small("rows", ops::DType::kBF16), small("rows", ops::DType::kF32), small_models()[7]}) {
    const auto group = make_solo_group();
    CaseModel gpu(source, *group, Numerics::kFast);
    GpuTransformer& model = *gpu.model;
    logits_of(model, 0, 20);
    const std::vector<float> verified = logits_of(model, 20, 17);
    expect_real_logits(verified);
    std::vector<float> singly;
    for (int32_t row = 20; row < 37; ++row) {
      const std::vector<float> one = logits_of(model, row, 1);
      singly.insert(singly.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(same_logit_bits(singly, verified));
    EXPECT_TRUE(same_logit_bits(logits_of(model, 20, 17, 11), verified));
    EXPECT_TRUE(same_logit_bits(logits_of(model, 20, 17, 28), verified));  // 45 rows: no graph
    // The next row reads pages that single steps wrote, then those of a verification.
    EXPECT_TRUE(same_logit_bits(logits_of(model, 37, 1), logits_of(model, 37, 1, 3)));
  }
}

TEST(GpuTransformer, GraphsGiveWhatLaunchesGive) {
  for (const StrictModel& source :
       {small("graphs", ops::DType::kBF16), small_models()[2], small_models()[7]}) {
    const auto group = make_solo_group();
    CaseModel eager(source, *group, Numerics::kFast, Format::kAuto, true);
    CaseModel recorded(source, *group, Numerics::kFast);
    recorded.model->warm_up();
    const size_t num_graphs = recorded.model->num_graphs();
    EXPECT_GT(num_graphs, 3u);
    for (const int32_t first : {0, 17, 18, 22, 39}) {
      const int32_t count = first == 0 ? 17 : first == 22 ? 17 : first == 18 ? 4 : 1;
      EXPECT_TRUE(same_logit_bits(logits_of(*recorded.model, first, count),
                                  logits_of(*eager.model, first, count)));
    }
    EXPECT_EQ(recorded.model->num_graphs(), num_graphs);
    EXPECT_EQ(eager.model->num_graphs(), 0u);
  }
}

// While the device computes the thread is free until the next look at the device; nothing is read
// before it is there, nor written while it is read.
TEST(GpuTransformer, LeavesTheDevicesTimeToTheRank) {
  const StrictModel source = small("meanwhile", ops::DType::kBF16);
  const auto group = make_solo_group();
  CaseModel plain(source, *group, Numerics::kFast);
  const gpu::LateWork late;
  CaseModel listening(source, *group, Numerics::kFast);
  int num_looks = 0;
  const auto look = [&] {
    const auto until = listening.model->advance();
    if (!until) return false;
    ++num_looks;
    EXPECT_LE(*until - JobClock::now(), std::chrono::milliseconds(1));
    return true;
  };
  EXPECT_TRUE(
      same_logit_bits(logits_of(*listening.model, 0, 17, 0, look), logits_of(*plain.model, 0, 17)));
  EXPECT_EQ(num_looks, 0);  // how long such a step takes was not known
  // A fast device may be done before the first look, always; the emulated one is not.
  constexpr int kRows = 31;
  constexpr int kMostSteps = 20 * kRows;
  for (int step = 0; step < kRows || (num_looks == 0 && step < kMostSteps); ++step) {
    const int32_t at = 17 + step % kRows;
    EXPECT_TRUE(same_logit_bits(logits_of(*listening.model, at, 1, 0, look),
                                logits_of(*plain.model, at, 1)));
  }
  if (gpu::is_emulated()) {
    EXPECT_GT(num_looks, 0);
  }
  EXPECT_TRUE(same_logit_bits(logits_of(*listening.model, 40, 3), logits_of(*plain.model, 40, 3)));
}

// Where logits stay, what looks at them is queued behind the step, and nobody waits before.
TEST(GpuTransformer, LogitsThatStayAreNotWaitedFor) {
  const StrictModel source = small("staying", ops::DType::kBF16);
  const auto group = make_solo_group();
  CaseModel plain(source, *group, Numerics::kFast);
  const std::vector<float> expected = logits_of(*plain.model, 0, 17);
  const gpu::LateWork late;
  CaseModel staying(source, *group, Numerics::kFast);
  GpuTransformer& model = *staying.model;
  model.keep_logits();
  const gpu::PinnedBuffer here(*staying.device, expected.size() * sizeof(float));
  const std::vector<int32_t> blocks = {5, 0, 9};
  Batch batch;
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 17; ++i) text.push_back(i * 7 % 75);
  append_rows(batch, text, 0, blocks);
  for (int32_t i = 0; i < 17; ++i) batch.logit_rows.push_back(i);
  model.begin(batch);
  const std::span<const float> logits = model.finish();
  ASSERT_EQ(logits.size(), expected.size());
  EXPECT_FALSE(gpu::is_emulated() && model.stream().is_done());
  model.stream().download(here.as<float>(), logits.data(), logits.size_bytes());
  model.wait();
  EXPECT_TRUE(model.stream().is_done());
  EXPECT_TRUE(same_logit_bits({here.as<float>(), here.as<float>() + expected.size()}, expected));
}

// Counts the pinned memory that is taken.
class CountingDevice final : public WrappedDevice {
 public:
  CountingDevice() : WrappedDevice(gpu::test_backend().open(0)) {}
  void* allocate_pinned(size_t num_bytes) override {
    num_pinned_bytes += num_bytes;
    return inner().allocate_pinned(num_bytes);
  }
  size_t num_pinned_bytes = 0;
};

TEST(GpuTransformer, LogitsTakePinnedMemoryOnlyWhereTheHostReadsThem) {
  const StrictModel source = small("pinned", ops::DType::kBF16);
  const auto& ops = gpu::test_backend().ops;
  const ModelShard shard = shard_model(source.config, 0, 1);
  CountingDevice device;
  std::shared_ptr<const GpuWeights> weights =
      random_gpu_weights(device, ops, source.config, shard, {.num_silent_ids = 0}, Format::kAuto);
  const auto group = make_solo_device_group(ops);
  GpuTransformer model(
      source.config, weights, shard, kStrictOptions, {.max_positions = 176}, device, ops);
  model.join(*group);
  const size_t logits_bytes = static_cast<size_t>(kStrictOptions.max_logit_rows) *
                              static_cast<size_t>(source.config.vocab_size) * sizeof(float);
  const size_t before = device.num_pinned_bytes;
  model.keep_logits();
  Batch batch;
  const std::vector<int32_t> blocks = {5, 0, 9};
  append_rows(batch, std::vector<int32_t>{1, 2, 3}, 0, blocks);
  batch.logit_rows = {2};
  model.forward(batch);
  EXPECT_EQ(device.num_pinned_bytes, before);
  model.read_logits_on_host();
  EXPECT_EQ(device.num_pinned_bytes, before + logits_bytes);
  expect_real_logits(logits_of(model, 0, 9));
  EXPECT_EQ(device.num_pinned_bytes, before + logits_bytes);
}

// The likeliest tokens of steps made one by one, by the same model.
std::vector<int32_t> likeliest_tokens(const StrictModel& source, Batch batch, int32_t num_steps) {
  const auto group = make_solo_group();
  CaseModel gpu(source, *group, Numerics::kFast);
  const auto width = static_cast<std::ptrdiff_t>(source.config.vocab_size);
  std::vector<int32_t> tokens;
  for (int32_t step = 0; step < num_steps; ++step) {
    const std::span<const float> logits = gpu.model->forward(batch);
    Batch behind;
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const auto row = static_cast<size_t>(batch.logit_rows[i]);
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i) * width;
      tokens.push_back(static_cast<int32_t>(std::max_element(begin, begin + width) - begin));
      behind.tokens.push_back(tokens.back());
      behind.positions.push_back(batch.positions[row] + 1);
      behind.sequence_of_row.push_back(static_cast<int32_t>(i));
      behind.logit_rows.push_back(static_cast<int32_t>(i));
    }
    behind.block_tables = batch.block_tables;
    batch = behind;
  }
  return tokens;
}

// -1 for a bad row.
std::vector<int32_t> tokens_of(const std::vector<ChosenToken>& chosen) {
  std::vector<int32_t> tokens;
  for (const ChosenToken& one : chosen) tokens.push_back(one.is_bad ? -1 : key_token(one.key));
  return tokens;
}

// Three sequences, of which the second is read in two rows and the first crosses a block.
TEST(GpuTransformer, ChainedStepsChooseWhatSingleStepsDo) {
  const StrictModel source = small("chained", ops::DType::kBF16);
  const std::vector<std::vector<int32_t>> blocks = {{5, 0, 9}, {7, 2}, {4, 6}};
  Batch first;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::vector<int32_t> text(i == 1 ? 2 : 13 - i, static_cast<int32_t>(10 * i + 3));
    append_rows(first, text, 0, blocks[i]);
    first.logit_rows.push_back(static_cast<int32_t>(first.tokens.size()) - 1);
  }
  constexpr int32_t kSteps = 6;
  const std::vector<int32_t> expected = likeliest_tokens(source, first, kSteps);
  const std::vector<TokenChoice> choices(blocks.size());
  ChainedSteps chain = {.first = &first,
                        .choices = choices,
                        .num_steps = kSteps,
                        .num_tokens = source.config.vocab_size};
  const auto group = make_solo_group();
  for (const bool enforce_eager : {true, false}) {
    CaseModel gpu(source, *group, Numerics::kFast, Format::kAuto, enforce_eager);
    GpuTransformer& model = *gpu.model;
    EXPECT_EQ(model.most_chained_steps(), 1);  // the host reads its logits
    model.keep_logits();
    EXPECT_GE(model.most_chained_steps(), kSteps);
    EXPECT_EQ(tokens_of(model.run_chain(chain)), expected);
    EXPECT_EQ(tokens_of(model.run_chain(chain)), expected);  // as a graph, where there are some
    chain.num_steps = 2;
    const std::vector<int32_t> some(expected.begin(), expected.begin() + 2 * 3);
    EXPECT_EQ(tokens_of(model.run_chain(chain)), some);
    chain.num_steps = kSteps;
    // A sequence whose keys are NaN ends there; the others go on.
    model.clear_blocks(std::vector<int32_t>{5, 4, 7});
    model.poison_position(7, 0);
    Batch behind = first;
    for (int32_t& position : behind.positions) position += 16;
    ChainedSteps bad = chain;
    bad.first = &behind;
    const std::vector<int32_t> found = tokens_of(model.run_chain(bad));
    EXPECT_EQ(found[1], -1);
    EXPECT_GE(found[0], 0);
    EXPECT_GE(found[2], 0);
  }
}

TEST(GpuTransformer, APromptInPiecesIsThePromptInOne) {
  const StrictModel source = small("pieces", ops::DType::kBF16);
  const auto group = make_solo_group();
  CaseModel whole(source, *group, Numerics::kFast);
  CaseModel pieces(source, *group, Numerics::kFast);
  logits_of(*whole.model, 0, 45);
  for (const auto& [first, count] : {std::pair{0, 33}, {33, 5}, {38, 7}}) {
    logits_of(*pieces.model, first, count);
  }
  EXPECT_TRUE(same_logit_bits(logits_of(*pieces.model, 45, 3), logits_of(*whole.model, 45, 3)));
}

TEST(GpuTransformer, StrictBitsAreThoseOfAnyNumberOfRanks) {
  for (const StrictModel& model : {small_models()[1], small_models()[4], small_models()[7]}) {
    const std::vector<float> expected = on_ranks(model, 1, Numerics::kStrict);
    expect_real_logits(expected);
    const double tolerance = model.dtype == ops::DType::kF32 ? 1e-5 : 1e-2;
    EXPECT_TRUE(distance(expected, on_cpu(model)) <= tolerance) << model.name;
    for (const int num_ranks : {2, 4}) {
      EXPECT_TRUE(same_logit_bits(on_ranks(model, num_ranks, Numerics::kStrict), expected))
          << model.name << " on " << num_ranks << " ranks";
    }
    EXPECT_TRUE(distance(on_ranks(model, 2, Numerics::kFast), on_cpu(model)) <= tolerance);
  }
}

// As a GGUF file may have them, in another type.
TEST(GpuTransformer, ValuesThatLieApartAreJoined) {
  const StrictModel model = small("plain, bf16", ops::DType::kBF16);
  const auto group = make_solo_group();
  std::unique_ptr<Weights> weights = weights_of(model, shard_model(model.config, 0, 1));
  const int64_t of_v = int64_t{model.config.n_kv_heads} * model.config.head_dim;
  for (LayerWeights& layer : weights->layers) {
    const ops::PackedMatrix all = std::move(layer.qkv);
    const int64_t n_in = all.n_in();
    layer.qkv = {all.n_out() - of_v, n_in, ops::DType::kBF16};
    layer.v = {of_v, n_in, ops::DType::kBF16};
    std::vector<float> row(static_cast<size_t>(n_in));
    for (int64_t i = 0; i < all.n_out(); ++i) {
      all.read_row(i, row.data());
      const int64_t in_v = i - layer.qkv.n_out();
      ops::PackedMatrix& to = in_v < 0 ? layer.qkv : layer.v;
      to.fill_rows(in_v < 0 ? i : in_v, row.data(), 1, n_in, ops::DType::kF32);
    }
  }
  CaseModel gpu(model.config, std::move(weights), *group);
  const std::vector<float> found = play_script(*gpu.model, *group);
  const std::vector<float> expected = on_gpu(model);
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0);
}

TEST(GpuTransformer, EightBitWeightsComeNear) {
  const StrictModel model = small("e4m3", ops::DType::kBF16);
  const std::vector<float> expected = on_cpu(model);
  const double found = distance(on_gpu(model, Format::kFp8), expected);
  EXPECT_TRUE(found <= 0.2) << found;
  EXPECT_GT(found, 0.01);  // they were rounded
}

// The same numbers in float32 on a CPU, which is what acceptance is counted with where no GPU is.
TEST(GpuTransformer, EightBitWeightsAreThoseOfTheCpusComparison) {
  for (const StrictModel& model :
       {small("e4m3", ops::DType::kBF16), small_models()[5], small_models()[7]}) {
    const auto group = make_solo_group();
    const ModelShard shard = shard_model(model.config, 0, 1);
    std::unique_ptr<Weights> weights = weights_of(model, shard);
    round_to_e4m3(model.config, shard, *weights);
    ops::Context context(1, available_isas().back());
    Transformer rounded(model.config, std::move(weights), shard, kStrictOptions, *group, context);
    const double found = distance(on_gpu(model, Format::kFp8), play_script(rounded, *group));
    EXPECT_TRUE(found <= 1e-2) << model.name << ": " << found;
  }
}

TEST(GpuTransformer, BlocksAreClearedCopiedAndPoisoned) {
  for (const StrictModel& source : {small("blocks", ops::DType::kBF16), small_models()[7]}) {
    const auto group = make_solo_group();
    CaseModel gpu(source, *group, Numerics::kFast);
    GpuTransformer& model = *gpu.model;
    logits_of(model, 0, 20);
    const std::vector<float> expected = logits_of(model, 20, 1);
    model.copy_block(5, 11);
    model.poison_position(5, 3);
    EXPECT_TRUE(std::isnan(logits_of(model, 20, 1)[0]));
    model.copy_block(11, 5);
    EXPECT_TRUE(same_logit_bits(logits_of(model, 20, 1), expected));
    const std::vector<int32_t> blocks = {5, 9};
    model.poison_blocks(blocks);
    EXPECT_TRUE(std::isnan(logits_of(model, 20, 1)[0]));
    model.clear_blocks(blocks);
    EXPECT_FALSE(std::isnan(logits_of(model, 20, 1)[0]));
    EXPECT_FALSE(same_logit_bits(logits_of(model, 20, 1), expected));
  }
}

// One latent vector a position where all heads' keys and values would be, and that of layers that
// have any.
TEST(GpuTransformer, KeysTakeTheMemoryOfTheirLayers) {
  const auto per_position = [](const ModelConfig& config) {
    return gpu_kv_bytes_per_block(config, shard_model(config, 0, 1), 16, gpu::Type::kBF16) / 32;
  };
  const ModelConfig latent = small_models()[7].config;
  EXPECT_EQ(per_position(latent), static_cast<size_t>(latent.n_layers * latent.head_dim));
  ModelConfig config = small("layers", ops::DType::kBF16).config;  // 2 KV heads of 16
  config.n_layers = 4;
  EXPECT_EQ(per_position(config), size_t{4 * 2 * 2 * 16});
  config.sliding_window = 20;
  config.full_layers = {false, true, false, true};
  config.full_head_dim = 32;
  config.full_kv_heads = 1;
  config.kv_shared_layers = 1;
  EXPECT_EQ(per_position(config), size_t{2 * 2 * 2 * 16 + 2 * 1 * 32});
}

TEST(GpuWeights, DrawnOnTheDeviceGiveLogitsThatMeanSomething) {
  StrictModel dense = small("random", ops::DType::kBF16);
  StrictModel sparse = small("random experts", ops::DType::kBF16);
  add_experts(sparse.config);
  const auto& ops = gpu::test_backend().ops;
  for (const auto& [source, format] : {std::pair(dense, Format::kAuto),
                                       {dense, Format::kFp8},
                                       {sparse, Format::kAuto},
                                       {sparse, Format::kFp8}}) {
    const auto device = gpu::test_backend().open(0);
    const ModelShard shard = shard_model(source.config, 0, 1);
    std::shared_ptr<const GpuWeights> weights =
        random_gpu_weights(*device, ops, source.config, shard, {.num_silent_ids = 0}, format);
    EXPECT_EQ(weights->num_bytes, gpu_weight_bytes(source.config, shard, format));
    const auto group = make_solo_device_group(ops);
    GpuTransformer model(
        source.config, weights, shard, kStrictOptions, {.max_positions = 176}, *device, ops);
    model.join(*group);
    expect_real_logits(logits_of(model, 0, 9));
  }
}

}  // namespace
}  // namespace outrider::test
