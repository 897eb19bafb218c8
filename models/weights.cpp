// Fills a shard's weights piece by piece: which rows and columns of which tensor go where. See
// weights.h.
#include "models/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "models/safetensors.h"
#include "models/transformer.h"
#include "models/weight_names.h"
#include "runtime/base/error.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kRowsAlignment = 16;
constexpr int64_t kMaxThreads = 16;

// Calls work(range) for chunks of [0, num_rows), on several threads when there is enough to do;
// rethrows the first failure. Chunks start at multiples of kRowsAlignment.
template <typename Work>
void for_row_chunks(int64_t num_rows, int64_t row_bytes, const Work& work) {
  const int64_t wanted = std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, row_bytes));
  const int64_t chunk = (wanted + kRowsAlignment - 1) / kRowsAlignment * kRowsAlignment;
  const int64_t num_chunks = (num_rows + chunk - 1) / chunk;
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t num_threads = std::min({num_chunks, cores, kMaxThreads});
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto run = [&] {
    try {
      for (int64_t c = next++; c < num_chunks; c = next++) {
        work(Range{c * chunk, std::min(num_rows, (c + 1) * chunk)});
      }
    } catch (...) {
      next = num_chunks;
      const std::lock_guard<std::mutex> lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int64_t t = 1; t < num_threads; ++t) helpers.emplace_back(run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

// Rows (and columns) of one projection that become consecutive rows of a packed matrix.
struct Piece {
  std::string name;  // without ".weight"
  int64_t n_rows;    // of the whole tensor
  Range rows;
};

class Loader {
 public:
  Loader(const ModelConfig& config,
         const ModelShard& shard,
         const TensorSource& source,
         const std::function<void(size_t, size_t)>& progress)
      : config_(config), shard_(shard), source_(source), progress_(progress) {}

  std::unique_ptr<Weights> load();

 private:
  void load_layer(int32_t layer, LayerWeights& out);
  void count_total(ops::DType dtype);
  void advance(int64_t num_elements);
  std::vector<float> vector(const std::string& name, int64_t n, Range part);
  std::vector<float> vector(const std::string& name, int64_t n) { return vector(name, n, {0, n}); }
  std::vector<float> biases(const std::vector<Piece>& pieces);
  ops::PackedMatrix matrix(const std::vector<Piece>& pieces, int64_t n_columns, Range columns);
  ops::DType widest(const std::vector<Piece>& pieces, int64_t n_columns);
  void fill(ops::PackedMatrix& out, int64_t out_begin, const TensorPart& part, ops::DType dtype);
  void load_embedding(Weights& out);

  const ModelConfig& config_;
  const ModelShard& shard_;
  const TensorSource& source_;
  const std::function<void(size_t, size_t)>& progress_;
  size_t element_bytes_ = 0;
  size_t total_bytes_ = 0;
  size_t done_bytes_ = 0;
};

void Loader::count_total(ops::DType dtype) {
  const int64_t hidden = config_.hidden_dim;
  const int64_t heads = shard_.heads.size() * config_.head_dim;
  const int64_t kv = shard_.kv_heads.size() * config_.head_dim;
  const int64_t layer = hidden * (2 * heads + 2 * kv + 3 * shard_.ffn.size());
  element_bytes_ = ops::dtype_bytes(dtype);
  total_bytes_ = element_bytes_ *
                 static_cast<size_t>(config_.n_layers * layer + 2 * hidden * shard_.vocab.size());
}

void Loader::advance(int64_t num_elements) {
  done_bytes_ += element_bytes_ * static_cast<size_t>(num_elements);
  if (progress_) progress_(done_bytes_, total_bytes_);
}

std::vector<float> widen(const std::vector<std::byte>& raw, ops::DType dtype) {
  std::vector<float> values(raw.size() / ops::dtype_bytes(dtype));
  if (dtype == ops::DType::kF32) {
    std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, raw.data() + 2 * i, sizeof(bits));
    values[i] = dtype == ops::DType::kBF16 ? ops::bf16_to_float(bits) : ops::f16_to_float(bits);
  }
  return values;
}

std::vector<float> Loader::vector(const std::string& name, int64_t n, Range part) {
  const ops::DType dtype = source_.expect(name, {n});
  std::vector<std::byte> raw(static_cast<size_t>(part.size()) * ops::dtype_bytes(dtype));
  source_.read({name, n, {0, 1}, part}, raw.data());
  return widen(raw, dtype);
}

std::vector<float> Loader::biases(const std::vector<Piece>& pieces) {
  std::vector<float> all;
  for (const Piece& piece : pieces) {
    const auto part = vector(piece.name + ".bias", piece.n_rows, piece.rows);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Fused projections of different types share a matrix in float32, which holds all of them exactly.
ops::DType Loader::widest(const std::vector<Piece>& pieces, int64_t n_columns) {
  ops::DType all = source_.expect(pieces[0].name + ".weight", {pieces[0].n_rows, n_columns});
  for (const Piece& piece : pieces) {
    if (source_.expect(piece.name + ".weight", {piece.n_rows, n_columns}) != all) {
      all = ops::DType::kF32;
    }
  }
  return all;
}

void Loader::fill(ops::PackedMatrix& out,
                  int64_t out_begin,
                  const TensorPart& part,
                  ops::DType dtype) {
  const int64_t row_bytes = part.columns.size() * static_cast<int64_t>(ops::dtype_bytes(dtype));
  for_row_chunks(part.rows.size(), row_bytes, [&](Range chunk) {
    TensorPart piece = part;
    piece.rows = {part.rows.begin + chunk.begin, part.rows.begin + chunk.end};
    std::vector<std::byte> buffer(static_cast<size_t>(chunk.size() * row_bytes));
    source_.read(piece, buffer.data());
    out.fill_rows(out_begin + chunk.begin, buffer.data(), chunk.size(), part.columns.size(), dtype);
  });
}

ops::PackedMatrix Loader::matrix(const std::vector<Piece>& pieces,
                                 int64_t n_columns,
                                 Range columns) {
  const ops::DType dtype = widest(pieces, n_columns);
  int64_t n_out = 0;
  for (const Piece& piece : pieces) n_out += piece.rows.size();
  ops::PackedMatrix out(n_out, columns.size(), dtype);
  int64_t out_begin = 0;
  for (const Piece& piece : pieces) {
    const std::string name = piece.name + ".weight";
    const ops::DType own = source_.expect(name, {piece.n_rows, n_columns});
    fill(out, out_begin, {name, n_columns, piece.rows, columns}, own);
    out_begin += piece.rows.size();
  }
  advance(n_out * columns.size());
  return out;
}

Range scaled(Range range, int64_t factor) { return {range.begin * factor, range.end * factor}; }

void Loader::load_layer(int32_t layer, LayerWeights& out) {
  const LayerNames names(layer);
  const int64_t hidden = config_.hidden_dim;
  const int64_t head_dim = config_.head_dim;
  const int64_t q_rows = config_.n_heads * head_dim;
  const int64_t kv_rows = config_.n_kv_heads * head_dim;
  const Range heads = scaled(shard_.heads, head_dim);
  const Range kv = scaled(shard_.kv_heads, head_dim);
  const Range whole = {0, hidden};
  const std::vector<Piece> qkv = {
      {names.q(), q_rows, heads}, {names.k(), kv_rows, kv}, {names.v(), kv_rows, kv}};
  const std::vector<Piece> gate_up = {{names.gate(), config_.ffn_dim, shard_.ffn},
                                      {names.up(), config_.ffn_dim, shard_.ffn}};

  out.attn_norm = vector(names.attn_norm(), hidden);
  out.qkv = matrix(qkv, hidden, whole);
  if (config_.attention_bias) out.qkv_bias = biases(qkv);
  if (config_.qk_norm) out.q_norm = vector(names.q_norm(), head_dim);
  if (config_.qk_norm) out.k_norm = vector(names.k_norm(), head_dim);
  out.o = matrix({{names.o(), hidden, whole}}, q_rows, heads);
  if (config_.attention_out_bias) out.o_bias = biases({{names.o(), hidden, whole}});

  out.mlp_norm = vector(names.mlp_norm(), hidden);
  out.gate_up = matrix(gate_up, hidden, whole);
  if (config_.mlp_bias) out.gate_up_bias = biases(gate_up);
  out.down = matrix({{names.down(), hidden, whole}}, config_.ffn_dim, shard_.ffn);
  if (config_.mlp_bias) out.down_bias = biases({{names.down(), hidden, whole}});
  if (shard_.rank != 0) {
    out.o_bias.clear();
    out.down_bias.clear();
  }
}

void Loader::load_embedding(Weights& out) {
  const int64_t hidden = config_.hidden_dim;
  out.embedding_dtype = source_.expect(kEmbeddingName, {config_.vocab_size, hidden});
  const int64_t row_bytes = hidden * static_cast<int64_t>(ops::dtype_bytes(out.embedding_dtype));
  out.embedding = ops::allocate_bytes(static_cast<size_t>(shard_.vocab.size() * row_bytes));
  for_row_chunks(shard_.vocab.size(), row_bytes, [&](Range chunk) {
    const Range rows = {shard_.vocab.begin + chunk.begin, shard_.vocab.begin + chunk.end};
    source_.read({kEmbeddingName, hidden, rows, {0, hidden}},
                 out.embedding.get() + chunk.begin * row_bytes);
  });
  advance(shard_.vocab.size() * hidden);
}

std::unique_ptr<Weights> Loader::load() {
  const int64_t hidden = config_.hidden_dim;
  auto weights = std::make_unique<Weights>();
  count_total(source_.expect(kEmbeddingName, {config_.vocab_size, hidden}));
  load_embedding(*weights);
  weights->layers.resize(static_cast<size_t>(config_.n_layers));
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    load_layer(layer, weights->layers[static_cast<size_t>(layer)]);
  }
  weights->final_norm = vector(kFinalNormName, hidden);
  std::string head = config_.tied_head ? kEmbeddingName : kHeadName;
  head.resize(head.size() - std::string(".weight").size());
  weights->head = matrix({{head, config_.vocab_size, shard_.vocab}}, hidden, {0, hidden});
  return weights;
}

// The tensors of a Hugging Face folder.
class CheckpointSource : public TensorSource {
 public:
  explicit CheckpointSource(const std::filesystem::path& model_dir) : checkpoint_(model_dir) {}

  ops::DType expect(const std::string& name, const std::vector<int64_t>& shape) const override {
    const auto [file, info] = checkpoint_.find(name);
    if (info == nullptr) {
      throw Error(fmt::format("{}: tensor \"{}\" is missing; expected in shape {}",
                              checkpoint_.origin(),
                              name,
                              shape_text(shape)));
    }
    if (info->shape != shape) {
      throw Error(fmt::format("{}: tensor \"{}\" has shape {} but config.json asks for {}",
                              file->name(),
                              name,
                              shape_text(info->shape),
                              shape_text(shape)));
    }
    if (!info->dtype) {
      throw Error(fmt::format("{}: tensor \"{}\" is of type {}; weights must be F32, BF16 or F16",
                              file->name(),
                              name,
                              info->type_name));
    }
    return *info->dtype;
  }

  void read(const TensorPart& part, std::byte* out) const override {
    const auto [file, info] = checkpoint_.find(part.name);
    OUTRIDER_CHECK(info != nullptr && info->dtype.has_value());
    const auto element = static_cast<int64_t>(ops::dtype_bytes(*info->dtype));
    const int64_t row_bytes = part.columns.size() * element;
    const int64_t stride = part.n_columns * element;
    const int64_t begin = part.rows.begin * stride + part.columns.begin * element;
    if (row_bytes == stride) {
      file->read(
          *info, static_cast<uint64_t>(begin), out, static_cast<size_t>(part.rows.size() * stride));
      return;
    }
    for (int64_t row = 0; row < part.rows.size(); ++row) {
      file->read(*info,
                 static_cast<uint64_t>(begin + row * stride),
                 out + row * row_bytes,
                 static_cast<size_t>(row_bytes));
    }
  }

 private:
  Checkpoint checkpoint_;
};

}  // namespace

size_t Weights::matrix_bytes() const {
  size_t total = head.num_bytes();
  for (const LayerWeights& layer : layers) {
    total += layer.qkv.num_bytes() + layer.o.num_bytes() + layer.gate_up.num_bytes() +
             layer.down.num_bytes();
  }
  return total;
}

std::unique_ptr<Weights> build_weights(const ModelConfig& config,
                                       const ModelShard& shard,
                                       const TensorSource& source,
                                       const std::function<void(size_t, size_t)>& progress) {
  return Loader(config, shard, source, progress).load();
}

std::unique_ptr<Weights> load_weights(const std::filesystem::path& model_dir,
                                      const ModelConfig& config,
                                      const ModelShard& shard,
                                      const std::function<void(size_t, size_t)>& progress) {
  return build_weights(config, shard, CheckpointSource(model_dir), progress);
}

}  // namespace outrider
