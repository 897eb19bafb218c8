// Loading: every thread count gives the same weights, ranks read only what is theirs, a tied
// embedding is held once, progress and failures.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "models/checkpoint/safetensors_writer.h"
#include "models/checkpoint/weight_names.h"
#include "models/synthetic/synthetic.h"
#include "runtime/base/error.h"
#include "runtime/base/telemetry/process_memory.h"
#include "tests/models/model_test_util.h"

namespace outrider::test {
namespace {

ModelConfig small_shape(bool tied_head) {
  ModelConfig config = synthetic_shape("llama-3.2-1b@3");
  config.hidden_dim = 256;
  config.n_heads = 8;
  config.n_kv_heads = 4;
  config.head_dim = 32;
  config.rope.rotary_dim = 32;
  config.ffn_dim = 700;
  config.vocab_size = 1500;
  config.max_positions = 256;
  config.tied_head = tied_head;
  return config;
}

bool same_matrix(const ops::PackedMatrix& a, const ops::PackedMatrix& b) {
  return a.num_bytes() == b.num_bytes() && a.num_bytes() > 0 &&
         std::memcmp(a.data(), b.data(), a.num_bytes()) == 0;
}

bool same_weights(const Weights& a, const Weights& b) {
  bool same = same_matrix(a.head, b.head) && a.embedding_bytes == b.embedding_bytes &&
              std::memcmp(a.embedding.get(), b.embedding.get(), a.embedding_bytes) == 0;
  for (size_t i = 0; i < a.layers.size(); ++i) {
    same = same && same_matrix(a.layers[i].qkv, b.layers[i].qkv) &&
           same_matrix(a.layers[i].o, b.layers[i].o) &&
           same_matrix(a.layers[i].gate_up, b.layers[i].gate_up) &&
           same_matrix(a.layers[i].down, b.layers[i].down);
  }
  return same;
}

TEST(Load, AnyNumberOfThreadsGivesTheSameWeights) {
  const ModelConfig config = small_shape(false);
  const auto source = make_synthetic_source(config, {});
  for (int rank = 0; rank < 2; ++rank) {
    const ModelShard shard = shard_model(config, rank, 2);
    const auto one = build_weights(config, shard, *source, {}, 1);
    for (const int num_threads : {2, 3, 7, 200}) {
      EXPECT_TRUE(same_weights(*one, *build_weights(config, shard, *source, {}, num_threads)))
          << num_threads;
    }
  }
  const auto other = make_synthetic_source(config, {.seed = 43});
  const ModelShard shard = shard_model(config, 0, 2);
  EXPECT_FALSE(same_weights(*build_weights(config, shard, *source, {}, 2),
                            *build_weights(config, shard, *other, {}, 2)));
}

cpu_set_t own_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  EXPECT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  return cpus;
}

// Notes every part that is read and where, and can fail.
class WatchedSource : public TensorSource {
 public:
  explicit WatchedSource(const ModelConfig& config) : source_(make_synthetic_source(config, {})) {}

  ops::DType expect(const std::string& name, const std::vector<int64_t>& shape) const override {
    return source_->expect(name, shape);
  }
  void read(const TensorPart& part, std::byte* out) const override {
    if (part.name == broken && part.rows.end > broken_row) throw Error("a bad block");
    const std::lock_guard<std::mutex> lock(mutex_);
    num_bytes_ += static_cast<size_t>(part.rows.size() * part.columns.size()) *
                  ops::dtype_bytes(source_->expect(part.name, {}));
    if (part.rows.size() > 1) cpus_.push_back(own_cpus());  // norms are read one by one before
    source_->read(part, out);
  }
  bool lies_by_columns(const std::string&) const override { return by_columns; }
  size_t num_bytes() const { return num_bytes_; }
  const std::vector<cpu_set_t>& cpus() const { return cpus_; }  // of the threads that read matrices

  std::string broken;
  int64_t broken_row = 0;
  bool by_columns = false;

 private:
  std::unique_ptr<TensorSource> source_;
  mutable std::mutex mutex_;
  mutable size_t num_bytes_ = 0;
  mutable std::vector<cpu_set_t> cpus_;
};

TEST(Load, EveryByteIsReadOnceAndProgressEndsThere) {
  const ModelConfig config = small_shape(false);
  for (const int num_threads : {1, 4}) {
    const WatchedSource source(config);
    size_t last = 0;
    size_t total = 0;
    const auto weights = build_weights(
        config,
        shard_model(config, 0, 1),
        source,
        [&](size_t done, size_t all) {
          EXPECT_GT(done, last);
          EXPECT_LE(done, all);
          last = done;
          total = all;
        },
        num_threads);
    EXPECT_EQ(source.num_bytes(), weights->num_bytes_read);
    EXPECT_EQ(last, total);
    // All but the norms are matrices and the embedding.
    EXPECT_EQ(total, weights->num_bytes_read - 7u * 256 * 2);
  }
}

// Of matrices that lie by columns few rows are many short reads.
TEST(Load, WhatLiesByColumnsIsReadInLongStretches) {
  const ModelConfig config = small_shape(false);
  for (const bool by_columns : {false, true}) {
    WatchedSource source(config);
    source.by_columns = by_columns;
    build_weights(config, shard_model(config, 0, 1), source, {}, 1);
    // Of head, embedding and seven matrices a layer; up begins within a line, so it is cut.
    const size_t num_reads = 2 + 3 * (7 + 1);
    EXPECT_EQ(source.cpus().size() == num_reads, by_columns) << source.cpus().size();
  }
}

// A tensor of 70 inputs and 50 outputs that lies as [inputs, outputs].
template <typename Bits>
void expect_turned_over(const std::string& type_name) {
  ModelConfig config = small_shape(true);
  config.transposed = true;
  const std::string name = LayerNames(0).q() + ".weight";
  std::vector<Bits> bits(70 * 50);
  std::iota(bits.begin(), bits.end(), Bits{1});
  const TempDir dir;
  CheckpointWriter writer(dir.path(), {{name, type_name, {70, 50}}});
  writer.append(name, std::as_bytes(std::span(bits)));
  writer.finish();
  const auto source = make_checkpoint_source(dir.path(), config, {0, 1});
  EXPECT_TRUE(source->lies_by_columns(name));
  EXPECT_NO_THROW(source->expect(name, {50, 70}));
  for (const TensorPart& part : {TensorPart{name, 70, {0, 50}, {0, 70}},
                                 TensorPart{name, 70, {3, 41}, {5, 69}},
                                 TensorPart{name, 70, {49, 50}, {66, 70}}}) {
    std::vector<Bits> got(static_cast<size_t>(part.rows.size() * part.columns.size()));
    source->read(part, reinterpret_cast<std::byte*>(got.data()));
    size_t at = 0;
    for (int64_t row = part.rows.begin; row < part.rows.end; ++row) {
      for (int64_t column = part.columns.begin; column < part.columns.end; ++column) {
        ASSERT_EQ(got[at++], bits[static_cast<size_t>(column * 50 + row)]) << row << " " << column;
      }
    }
  }
}

TEST(Load, TransposedMatricesAreTurnedOver) {
  expect_turned_over<uint16_t>("BF16");
  expect_turned_over<uint32_t>("F32");
}

// Where the kernels' threads will run, so that first touch puts pages there.
TEST(Load, ThreadsReadWhereThePlanHoldsThem) {
  const ModelConfig config = small_shape(false);
  const cpu_set_t before = own_cpus();
  ops::ThreadPlan plan = 3;
  for (int c = 0; c < CPU_SETSIZE && plan.cpus.size() < 3; ++c) {
    if (CPU_ISSET(c, &before)) plan.cpus.push_back(c);
  }
  ASSERT_FALSE(plan.cpus.empty());
  while (plan.cpus.size() < 3) plan.cpus.push_back(plan.cpus.front());
  const WatchedSource source(config);
  const auto weights = build_weights(config, shard_model(config, 0, 1), source, {}, plan);
  const std::vector<cpu_set_t> seen = source.cpus();
  EXPECT_GE(seen.size(), 14u);  // a read at least for every matrix
  for (const cpu_set_t& cpus : seen) {
    EXPECT_EQ(CPU_COUNT(&cpus), 1);
    EXPECT_TRUE(std::ranges::any_of(plan.cpus, [&](int c) { return CPU_ISSET(c, &cpus); }));
  }
  const cpu_set_t after = own_cpus();
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
  EXPECT_TRUE(same_weights(*weights, *build_weights(config, shard_model(config, 0, 1), source)));
}

TEST(Load, AFailureOfAnyThreadIsToldOnce) {
  const ModelConfig config = small_shape(false);
  WatchedSource source(config);
  source.broken = "model.layers.1.mlp.down_proj.weight";
  source.broken_row = 200;  // of 256: the last thread's part
  for (const int num_threads : {1, 2, 5}) {
    try {
      build_weights(config, shard_model(config, 0, 1), source, {}, num_threads);
      FAIL() << "loaded in spite of it";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "a bad block");
    }
  }
}

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

std::vector<NamedTensor> tensors_of(const ModelConfig& config) {
  const auto hidden = int64_t{config.hidden_dim};
  const int64_t heads = int64_t{config.n_heads} * config.head_dim;
  const int64_t kv = int64_t{config.n_kv_heads} * config.head_dim;
  std::vector<NamedTensor> tensors = {{kEmbeddingName, {config.vocab_size, hidden}},
                                      {"model.norm.weight", {hidden}}};
  if (!config.tied_head) tensors.push_back({kHeadName, {config.vocab_size, hidden}});
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const LayerNames names(layer);
    tensors.push_back({names.prefix + "input_layernorm.weight", {hidden}});
    tensors.push_back({names.prefix + "post_attention_layernorm.weight", {hidden}});
    tensors.push_back({names.q() + ".weight", {heads, hidden}});
    tensors.push_back({names.k() + ".weight", {kv, hidden}});
    tensors.push_back({names.v() + ".weight", {kv, hidden}});
    tensors.push_back({names.o() + ".weight", {hidden, heads}});
    tensors.push_back({names.gate() + ".weight", {config.ffn_dim, hidden}});
    tensors.push_back({names.up() + ".weight", {config.ffn_dim, hidden}});
    tensors.push_back({names.down() + ".weight", {hidden, config.ffn_dim}});
  }
  return tensors;
}

// A folder with the synthetic weights of a config.
void write_checkpoint(const std::filesystem::path& dir, const ModelConfig& config) {
  const auto source = make_synthetic_source(config, {});
  std::vector<PlannedTensor> planned;
  for (const NamedTensor& tensor : tensors_of(config)) {
    planned.push_back({tensor.name, "BF16", tensor.shape});
  }
  CheckpointWriter writer(dir, planned);
  for (const PlannedTensor& tensor : planned) {
    const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
    const int64_t columns = tensor.shape.back();
    std::vector<std::byte> bytes(tensor.num_bytes());
    source->read({tensor.name, columns, {0, rows}, {0, columns}}, bytes.data());
    writer.append(tensor.name, bytes);
  }
  writer.finish();
}

// What all threads of this process took from files so far; nothing where the system does not say.
std::optional<uint64_t> bytes_read_so_far() {
  std::ifstream io("/proc/self/io");
  std::string key;
  uint64_t value = 0;
  if (!(io >> key >> value) || key != "rchar:") return std::nullopt;
  return value;
}

TEST(Load, RanksReadOnlyTheirShards) {
  const TempDir dir;
  const ModelConfig config = small_shape(false);
  write_checkpoint(dir.path(), config);
  const auto source = make_synthetic_source(config, {});
  size_t norm_bytes = 0;
  size_t matrix_bytes = 0;
  for (const NamedTensor& tensor : tensors_of(config)) {
    size_t bytes = 2;
    for (const int64_t size : tensor.shape) bytes *= static_cast<size_t>(size);
    (tensor.shape.size() == 1 ? norm_bytes : matrix_bytes) += bytes;
  }
  for (int rank = 0; rank < 2; ++rank) {
    const ModelShard shard = shard_model(config, rank, 2);
    const auto before = bytes_read_so_far();
    const auto loaded = load_weights(dir.path(), config, shard, {}, 3);
    const auto after = bytes_read_so_far();
    EXPECT_TRUE(same_weights(*loaded, *build_weights(config, shard, *source)));
    // Everything is even here: half of every matrix, and the norms.
    EXPECT_EQ(loaded->num_bytes_read, matrix_bytes / 2 + norm_bytes);
    if (!before || !after) GTEST_SKIP() << "the system does not count what is read";
    EXPECT_GE(*after - *before, loaded->num_bytes_read);
    EXPECT_LE(*after - *before, loaded->num_bytes_read + (64 << 10));  // the header
  }
}

TEST(Load, AFileThatIsWrittenToMeanwhileIsRefused) {
  const TempDir dir;
  const ModelConfig config = small_shape(true);
  write_checkpoint(dir.path(), config);
  bool touched = false;
  try {
    load_weights(dir.path(), config, shard_model(config, 0, 1), [&](size_t, size_t) {
      if (touched) return;
      touched = true;
      std::filesystem::last_write_time(
          dir.path() / "model.safetensors",
          std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
    });
    FAIL() << "loaded in spite of it";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.safetensors: was changed while it was read"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(touched);
}

TEST(Load, AFileThatShrinksMeanwhileNamesFileAndTensor) {
  const TempDir dir;
  const ModelConfig config = small_shape(false);
  write_checkpoint(dir.path(), config);
  const auto file = dir.path() / "model.safetensors";
  try {
    load_weights(
        dir.path(),
        config,
        shard_model(config, 0, 1),
        [&](size_t, size_t) { std::filesystem::resize_file(file, 100'000); },
        1);
    FAIL() << "loaded in spite of it";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("model.safetensors: ends before byte"), std::string::npos) << text;
    EXPECT_NE(text.find("(tensor \"lm_head.weight\")"), std::string::npos) << text;
  }
}

std::vector<float> logits_of(const ModelConfig& config, std::shared_ptr<const Weights> weights) {
  const std::vector<int32_t> tokens = {0, 1, 63, 64, 700, config.vocab_size - 1, 259, 300};
  return LoneModel(config, std::move(weights), ops::best_isa(), 2).run(tokens, 0, block_ids(0, 1));
}

TEST(Load, ATiedEmbeddingIsReadFromTheHeadWithTheSameBits) {
  const ModelConfig config = small_shape(true);
  for (const ops::DType dtype : {ops::DType::kF32, ops::DType::kBF16, ops::DType::kF16}) {
    const auto source = make_synthetic_source(config, {.dtype = dtype});
    const ModelShard shard = shard_model(config, 0, 1);
    const std::shared_ptr<const Weights> shared = build_weights(config, shard, *source);
    EXPECT_EQ(shared->embedding, nullptr);
    EXPECT_EQ(shared->embedding_bytes, 0u);
    EXPECT_LT(shared->num_bytes(), shared->matrix_bytes() + (32 << 10));  // norms

    auto apart = build_weights(config, shard, *source);
    const int64_t hidden = config.hidden_dim;
    apart->embedding_bytes =
        static_cast<size_t>(config.vocab_size * hidden) * ops::dtype_bytes(dtype);
    apart->embedding = ops::allocate_bytes(apart->embedding_bytes);
    source->read({kEmbeddingName, hidden, {0, config.vocab_size}, {0, hidden}},
                 apart->embedding.get());
    const std::vector<float> a = logits_of(config, shared);
    const std::vector<float> b = logits_of(config, std::move(apart));
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
    EXPECT_GT(*std::max_element(a.begin(), a.end()), 0.1f);
    EXPECT_FALSE(std::isnan(a[0]));
  }
}

TEST(Load, TheProcessHoldsLittleMoreThanTheWeights) {
  if (process_memory().resident_bytes == 0) GTEST_SKIP() << "the system does not say";
  ModelConfig config = small_shape(true);
  config.n_layers = 1;
  config.vocab_size = 64'000;
  const auto source = make_synthetic_source(config, {.dtype = ops::DType::kF32});
  const int64_t before = process_memory().resident_bytes;
  const auto weights = build_weights(config, shard_model(config, 0, 1), *source);
  const int64_t held = process_memory().resident_bytes - before;
  const auto wanted = static_cast<int64_t>(weights->num_bytes());
  EXPECT_GT(wanted, 60 << 20);
  EXPECT_GT(held, wanted / 2);
  EXPECT_LT(held, wanted + (30 << 20));  // the embedding once more would be 62 MiB
}

}  // namespace
}  // namespace outrider::test
