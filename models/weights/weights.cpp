// Fills a shard's weights piece by piece: which rows and columns of which tensor go where. See
// weights.h.
#include "models/weights/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "models/checkpoint/weight_names.h"
#include "models/weights/pieces.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr unsigned kMaxThreads = 16;

class Loader {
 public:
  Loader(const ModelConfig& config, const ModelShard& shard, const TensorSource& source)
      : config_(config), shard_(shard), source_(source) {}

  // Memory for everything, and vectors read; the matrices' parts are planned.
  std::unique_ptr<Weights> plan();
  const std::vector<PlannedPart>& parts() const { return parts_; }
  // Of the vectors and the planned parts.
  size_t num_bytes_read() const {
    size_t total = vector_bytes_;
    for (const PlannedPart& planned : parts_) total += static_cast<size_t>(planned.num_bytes());
    return total;
  }

 private:
  void plan_layer(int32_t layer, LayerWeights& out);
  void plan_qkv(const LayerNames& names, LayerWeights& out);
  void plan_latent(const LayerNames& names, LayerWeights& out);
  void plan_per_layer_inputs(const LayerNames& names, LayerWeights& out);
  void plan_mlp(const LayerNames& names, LayerWeights& out);
  void plan_beside_mlp(const LayerNames& names, LayerWeights& out);
  void plan_experts(const LayerNames& names, LayerWeights& out);
  void plan_router(const LayerNames& names, LayerWeights& out);
  std::vector<float> vector(const std::string& name, int64_t n, Range part);
  std::vector<float> vector(const std::string& name, int64_t n) { return vector(name, n, {0, n}); }
  std::vector<float> floats(const TensorPart& part, ops::DType dtype);
  NormWeights norm(const std::string& name);
  std::vector<float> head_norms(const LayerNames& names, const std::string& name, Range heads);
  std::vector<Piece> gate_up_pieces(const LayerNames& names) const;
  std::vector<float> biases(const std::vector<Piece>& pieces);
  void plan_matrix(ops::PackedMatrix& out,
                   const std::vector<Piece>& pieces,
                   int64_t n_columns,
                   Range columns);
  ops::DType widest(const std::vector<Piece>& pieces, int64_t n_columns);
  ops::PackedMatrix make_matrix(const std::vector<Piece>& pieces,
                                int64_t n_columns,
                                Range columns,
                                const std::optional<ops::QuantFormat>& integers);
  std::optional<ops::QuantFormat> common_format(const std::vector<Piece>& pieces,
                                                int64_t n_columns) const;
  void plan_embedding(Weights& out);
  ops::AlignedBytes plan_rows(const std::string& name, int64_t n, ops::DType dtype);
  void plan_per_layer_inputs(Weights& out);

  ModelConfig config_;  // in a layer's context of that layer
  ModelShard shard_;    // the same
  const TensorSource& source_;
  std::vector<PlannedPart> parts_;
  size_t vector_bytes_ = 0;
};

std::vector<float> Loader::floats(const TensorPart& part, ops::DType dtype) {
  const int64_t count = part.rows.size() * part.columns.size();
  std::vector<std::byte> raw(static_cast<size_t>(count) * ops::dtype_bytes(dtype));
  source_.read(part, raw.data());
  vector_bytes_ += raw.size();
  return widen(raw, dtype);
}

std::vector<float> Loader::vector(const std::string& name, int64_t n, Range part) {
  return floats({name, n, {0, 1}, part}, source_.expect(name, {n}));
}

NormWeights Loader::norm(const std::string& name) {
  NormWeights out;
  out.weight = vector(name + ".weight", config_.hidden_dim);
  if (config_.norm_plus_one) {
    for (float& weight : out.weight) weight += 1.0f;
  }
  if (config_.norm_bias) out.bias = vector(name + ".bias", config_.hidden_dim);
  return out;
}

// Weights of a norm of queries or keys: `name` of the family, of which the shard has these heads.
std::vector<float> Loader::head_norms(const LayerNames& names,
                                      const std::string& name,
                                      Range heads) {
  const int64_t head_dim = config_.head_dim;
  std::vector<float> all;
  switch (config_.qk_norm_span) {
    case QkNormSpan::kHead:
      all = vector(names.prefix + name + ".weight", head_dim);
      break;
    case QkNormSpan::kAllHeads: {
      const bool is_query = name == config_.names.q_norm;
      const int64_t n_heads = is_query ? config_.n_heads : config_.n_kv_heads;
      all = vector(names.prefix + name + ".weight", n_heads * head_dim, scaled(heads, head_dim));
      break;
    }
    case QkNormSpan::kOwnHead:
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        const auto own = vector(fmt::format("{}{}.{}.weight", names.prefix, name, head), head_dim);
        all.insert(all.end(), own.begin(), own.end());
      }
  }
  for (float& weight : all) weight += config_.norm_plus_one ? 1.0f : 0.0f;
  return all;
}

std::vector<Piece> Loader::gate_up_pieces(const LayerNames& names) const {
  const int64_t ffn = config_.ffn_dim;
  if (!config_.gated_mlp) return {{names.up(), ffn, shard_.ffn}};
  if (config_.names.gate_up.empty()) {
    return {{names.gate(), ffn, shard_.ffn}, {names.up(), ffn, shard_.ffn}};
  }
  return {{names.gate_up(), 2 * ffn, shard_.ffn},
          {names.gate_up(), 2 * ffn, shifted(shard_.ffn, ffn)}};
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

void Loader::plan_matrix(ops::PackedMatrix& out,
                         const std::vector<Piece>& pieces,
                         int64_t n_columns,
                         Range columns) {
  const auto integers = common_format(pieces, n_columns);
  const bool as_integers = integers.has_value();
  out = make_matrix(pieces, n_columns, columns, integers);
  Range read = columns;
  if (out.is_quantized() && !as_integers) {
    // Whole groups, so that every shard finds the scales that the whole matrix has.
    const int64_t size = out.quant_format().group_size;
    const int64_t group = size == 0 ? n_columns : size;
    read = {columns.begin / group * group,
            std::min(n_columns, (columns.end + group - 1) / group * group)};
  }
  int64_t first_row = 0;
  for (const Piece& piece : pieces) {
    first_row += piece.zeros_before;
    const std::string name = piece.name + ".weight";
    const ops::DType own = source_.expect(name, {piece.n_rows, n_columns});
    parts_.push_back({.part = {name, n_columns, piece.rows, read},
                      .dtype = own,
                      .packed = &out,
                      .first_row = first_row,
                      .as_integers = as_integers,
                      .columns_before = columns.begin - read.begin,
                      .columns_after = read.end - columns.end});
    first_row += piece.rows.size();
  }
}

// The narrowest form that holds the integers of both.
ops::QuantFormat widest_of(const ops::QuantFormat& a, const ops::QuantFormat& b) {
  ops::QuantFormat both = {.bits = std::max(a.bits, b.bits),
                           .group_size = std::min(a.group_size, b.group_size),
                           .has_offsets = a.has_offsets || b.has_offsets,
                           .scales = a.scales == b.scales ? a.scales : ops::QuantScales::kFloat32};
  if (a.codes == b.codes && both.bits == 4) both.codes = a.codes;
  if (a.codes != b.codes) both.bits = 8;
  // A zero point has no place beside offsets in 4 bits.
  if (a.has_offsets != b.has_offsets) both.bits = std::max(both.bits, 6);
  return both;
}

// The form of a matrix that holds all pieces as the integers they are; none when there is no such.
std::optional<ops::QuantFormat> Loader::common_format(const std::vector<Piece>& pieces,
                                                      int64_t n_columns) const {
  std::optional<ops::QuantFormat> common;
  for (const Piece& piece : pieces) {
    const auto own = source_.integer_format({piece.name, piece.n_rows, n_columns});
    if (!own) return std::nullopt;
    if (!common) common = own;
    if (*own == *common) continue;
    // Scales of another type fit into floats; what else differs, not every source can widen.
    const bool same_integers = own->bits == common->bits && own->group_size == common->group_size &&
                               own->has_offsets == common->has_offsets;
    if (!same_integers && !source_.widens_integers()) return std::nullopt;
    common = widest_of(*common, *own);
  }
  return common;
}

ops::PackedMatrix Loader::make_matrix(const std::vector<Piece>& pieces,
                                      int64_t n_columns,
                                      Range columns,
                                      const std::optional<ops::QuantFormat>& integers) {
  int64_t n_out = 0;
  for (const Piece& piece : pieces) n_out += piece.zeros_before + piece.rows.size();
  if (integers) return {n_out, columns.size(), *integers, columns.begin};
  const ops::DType dtype = widest(pieces, n_columns);
  if (config_.load_format.bits != 0) {
    return {n_out, columns.size(), config_.load_format, columns.begin};
  }
  return {n_out, columns.size(), dtype};
}

void Loader::plan_layer(int32_t layer, LayerWeights& out) {
  const LayerNames names(layer, config_.names);
  const int64_t hidden = config_.hidden_dim;
  const Range whole = {0, hidden};
  const auto norm_into = [&](NormWeights& to, const std::string& name) {
    if (!name.empty()) to = norm(names.prefix + name);
  };
  norm_into(out.attn_norm, config_.names.attn_norm);
  norm_into(out.attn_post_norm, config_.names.attn_post_norm);
  norm_into(out.mlp_norm, config_.names.mlp_norm);
  norm_into(out.mlp_post_norm, config_.names.mlp_post_norm);

  plan_qkv(names, out);
  const std::string& sinks = config_.names.sinks;
  if (!sinks.empty()) out.sinks = vector(names.prefix + sinks, config_.n_heads, shard_.heads);
  const Range heads = scaled(shard_.heads, config_.value_dim());
  plan_matrix(
      out.o, {{names.o(), hidden, whole}}, int64_t{config_.n_heads} * config_.value_dim(), heads);
  if (config_.attention_out_bias) out.o_bias = biases({{names.o(), hidden, whole}});

  if (config_.has_experts(layer)) {
    plan_experts(names, out);
  } else {
    plan_mlp(names, out);
  }
  if (config_.per_layer_dim > 0) plan_per_layer_inputs(names, out);
  if (config_.layer_scalar) out.scalar = vector(names.prefix + names.family.layer_scalar, 1)[0];
  if (shard_.rank != 0) {
    out.o_bias.clear();
    out.down_bias.clear();
  }
}

void Loader::plan_qkv(const LayerNames& names, LayerWeights& out) {
  std::vector<Piece> qkv = qkv_pieces(config_, shard_, names);
  const Range whole = {0, config_.hidden_dim};
  if (config_.attention_bias) out.qkv_bias = biases(qkv);
  if (qkv.size() == 3) {
    const auto of_v = common_format({qkv[2]}, config_.hidden_dim);
    const auto of_others = common_format({qkv[0], qkv[1]}, config_.hidden_dim);
    if (of_v && of_others && *of_v != *of_others) {
      plan_matrix(out.v, {qkv[2]}, config_.hidden_dim, whole);
      qkv.pop_back();
    }
  }
  plan_matrix(out.qkv, qkv, config_.hidden_dim, whole);
  if (config_.is_latent()) plan_latent(names, out);
  if (!config_.qk_norm) return;
  out.q_norm = head_norms(names, config_.names.q_norm, shard_.heads);
  if (config_.names.k_norm.empty()) return;  // the layer reads another's keys
  out.k_norm = head_norms(names, config_.names.k_norm, shard_.kv_heads);
  if (config_.v_norm) out.v_norm.assign(static_cast<size_t>(config_.head_dim), 1.0f);
}

void Loader::plan_latent(const LayerNames& names, LayerWeights& out) {
  const LatentConfig& latent = config_.latent;
  const WeightNames& family = config_.names;
  out.k_norm = vector(names.prefix + family.kv_a_norm + ".weight", latent.kv_rank);
  const TensorPart kv_b = kv_b_part(config_, shard_, names);
  const ops::DType dtype = source_.expect(kv_b.name, {kv_b_rows(config_), latent.kv_rank});
  cut_kv_b(config_, floats(kv_b, dtype), dtype, out);
  if (latent.q_rank == 0) return;
  out.q_norm = vector(names.prefix + family.q_a_norm + ".weight", latent.q_rank);
  const int64_t rows = int64_t{config_.n_heads} * latent.query_dim();
  plan_matrix(out.q_b,
              {{names.prefix + family.q_b, rows, scaled(shard_.heads, latent.query_dim())}},
              latent.q_rank,
              {0, latent.q_rank});
}

void Loader::plan_per_layer_inputs(const LayerNames& names, LayerWeights& out) {
  const int64_t hidden = config_.hidden_dim;
  const int64_t dim = config_.per_layer_dim;
  const WeightNames& family = config_.names;
  plan_matrix(out.per_layer_gate,
              {{names.prefix + family.per_layer_gate, dim, {0, dim}}},
              hidden,
              {0, hidden});
  plan_matrix(out.per_layer_projection,
              {{names.prefix + family.per_layer_projection, hidden, {0, hidden}}},
              dim,
              {0, dim});
  out.per_layer_norm = norm(names.prefix + family.per_layer_norm);
}

void Loader::plan_mlp(const LayerNames& names, LayerWeights& out) {
  const int64_t hidden = config_.hidden_dim;
  const Range whole = {0, hidden};
  const std::vector<Piece> gate_up = gate_up_pieces(names);
  plan_matrix(out.gate_up, gate_up, hidden, whole);
  if (config_.mlp_bias) out.gate_up_bias = biases(gate_up);
  plan_matrix(out.down, {{names.down(), hidden, whole}}, config_.ffn_dim, shard_.ffn);
  if (config_.mlp_bias) out.down_bias = biases({{names.down(), hidden, whole}});
}

void Loader::plan_router(const LayerNames& names, LayerWeights& out) {
  const int64_t hidden = config_.hidden_dim;
  const std::vector<Piece> pieces = router_pieces(config_, names);
  int64_t n_out = 0;
  for (const Piece& piece : pieces) n_out += piece.n_rows;
  out.router = {n_out, hidden, ops::DType::kF32};
  int64_t first_row = 0;
  for (const Piece& piece : pieces) {
    const std::string name = piece.name + ".weight";
    const ops::DType dtype = source_.expect(name, {piece.n_rows, hidden});
    parts_.push_back({.part = {name, hidden, piece.rows, {0, hidden}},
                      .dtype = dtype,
                      .packed = &out.router,
                      .first_row = first_row});
    first_row += piece.rows.size();
  }
  if (config_.experts.biases) out.router_bias = biases(pieces);
  if (!config_.experts.correction) return;
  out.router_correction =
      vector(names.prefix + config_.names.router_correction, config_.experts.count);
}

void Loader::plan_experts(const LayerNames& names, LayerWeights& out) {
  const int64_t hidden = config_.hidden_dim;
  const Range whole = {0, hidden};
  const ExpertsConfig& experts = config_.experts;
  plan_router(names, out);
  if (experts.beside_mlp) plan_beside_mlp(names, out);
  plan_matrix(out.gate_up, expert_gate_up_pieces(config_, shard_, names), hidden, whole);
  plan_matrix(out.down, expert_down_pieces(config_, names), experts.ffn_dim, shard_.expert_ffn);
  if (experts.biases) {
    const auto bias = [&](const std::string& of, int64_t n, Range own) {
      const std::string name = names.prefix + of + "_bias";
      return floats({name, n, {0, experts.count}, own}, source_.expect(name, {experts.count, n}));
    };
    const int64_t rows = int64_t{2} * experts.ffn_dim;
    out.gate_up_bias = bias(config_.names.experts_gate_up, rows, scaled(shard_.expert_ffn, 2));
    out.down_bias = bias(config_.names.experts_down, hidden, whole);
  }
  if (experts.shared_ffn_dim == 0) return;
  plan_matrix(out.shared_gate_up,
              {{names.shared("gate_proj"), experts.shared_ffn_dim, shard_.shared_ffn},
               {names.shared("up_proj"), experts.shared_ffn_dim, shard_.shared_ffn}},
              hidden,
              whole);
  plan_matrix(out.shared_down,
              {{names.shared("down_proj"), hidden, whole}},
              experts.shared_ffn_dim,
              shard_.shared_ffn);
}

// The MLP, and the vectors that are there because of it.
void Loader::plan_beside_mlp(const LayerNames& names, LayerWeights& out) {
  const int64_t hidden = config_.hidden_dim;
  const WeightNames& family = config_.names;
  const Range whole = {0, hidden};
  plan_matrix(out.shared_gate_up, gate_up_pieces(names), hidden, whole);
  plan_matrix(out.shared_down, {{names.down(), hidden, whole}}, config_.ffn_dim, shard_.ffn);
  out.router_norm = vector(names.prefix + family.router_scale, hidden);
  const float root = 1.0f / std::sqrt(static_cast<float>(hidden));
  for (float& weight : out.router_norm) weight *= root;
  out.expert_scale = vector(names.prefix + family.expert_scale, config_.experts.count);
  out.experts_norm = norm(names.prefix + family.experts_norm);
  out.experts_post_norm = norm(names.prefix + family.experts_post_norm);
  out.dense_post_norm = norm(names.prefix + family.dense_post_norm);
}

void Loader::plan_embedding(Weights& out) {
  const int64_t hidden = config_.hidden_dim;
  const std::vector<Piece> all = {{config_.names.embedding, config_.vocab_size, shard_.vocab}};
  const bool as_integers = common_format(all, hidden).has_value();
  const bool head_is_as_in_file =
      out.head.is_quantized() ? as_integers : out.head.dtype() == out.embedding_dtype;
  if (config_.tied_head && head_is_as_in_file) return;
  if (as_integers) {
    plan_matrix(out.embedding_integers, all, hidden, {0, hidden});
    out.embedding_bytes = out.embedding_integers.num_bytes();
    return;
  }
  out.embedding = plan_rows(config_.names.embedding, hidden, out.embedding_dtype);
  out.embedding_bytes = static_cast<size_t>(parts_.back().num_bytes());
}

// The shard's tokens' rows of a table of n numbers a token, as they are.
ops::AlignedBytes Loader::plan_rows(const std::string& name, int64_t n, ops::DType dtype) {
  PlannedPart planned{.part = {name + ".weight", n, shard_.vocab, {0, n}}, .dtype = dtype};
  auto memory = ops::allocate_bytes(static_cast<size_t>(planned.num_bytes()));
  planned.dense = memory.get();
  parts_.push_back(std::move(planned));
  return memory;
}

void Loader::plan_per_layer_inputs(Weights& out) {
  const int64_t hidden = config_.hidden_dim;
  const int64_t width = int64_t{config_.n_layers} * config_.per_layer_dim;
  const WeightNames& names = config_.names;
  out.per_layer_dtype =
      source_.expect(names.per_layer_embedding + ".weight", {config_.vocab_size, width});
  out.per_layer_embedding = plan_rows(names.per_layer_embedding, width, out.per_layer_dtype);
  out.per_layer_embedding_bytes = static_cast<size_t>(parts_.back().num_bytes());
  plan_matrix(out.per_layer_projection,
              {{names.per_layer_model_projection, width, {0, width}}},
              hidden,
              {0, hidden});
  out.per_layer_norm = vector(names.per_layer_model_norm + ".weight", config_.per_layer_dim);
}

std::unique_ptr<Weights> Loader::plan() {
  const int64_t hidden = config_.hidden_dim;
  auto weights = std::make_unique<Weights>();
  const WeightNames names = config_.names;
  weights->embedding_dtype =
      source_.expect(names.embedding + ".weight", {config_.vocab_size, hidden});
  const std::string& head = config_.tied_head ? names.embedding : names.head;
  plan_matrix(weights->head, {{head, config_.vocab_size, shard_.vocab}}, hidden, {0, hidden});
  plan_embedding(*weights);
  if (config_.per_layer_dim > 0) plan_per_layer_inputs(*weights);
  weights->layers.resize(static_cast<size_t>(config_.n_layers));
  const ModelConfig config = config_;
  const ModelShard shard = shard_;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    config_ = config.of_layer(layer);
    shard_ = shard_of_layer(config, shard, layer);
    plan_layer(layer, weights->layers[static_cast<size_t>(layer)]);
  }
  config_ = config;
  shard_ = shard;
  weights->final_norm = norm(names.final_norm);
  if (names.has_positions()) {
    const int64_t rows = config_.max_positions + config_.position_offset;
    const std::string name = names.positions + ".weight";
    const TensorPart all = {name, hidden, {0, rows}, {0, hidden}};
    weights->positions = floats(all, source_.expect(name, {rows, hidden}));
  }
  return weights;
}

}  // namespace

void TensorSource::read_integers(const TensorPart&, int64_t, ops::PackedMatrix&) const {
  OUTRIDER_CHECK(false);  // integer_format() said that there are none
}

size_t Weights::matrix_bytes() const {
  size_t total = head.num_bytes() + per_layer_projection.num_bytes();
  for (const LayerWeights& layer : layers) {
    total += layer.qkv.num_bytes() + layer.v.num_bytes() + layer.q_b.num_bytes() +
             layer.kv_b_keys.num_bytes() + layer.kv_b_values.num_bytes() + layer.o.num_bytes() +
             layer.gate_up.num_bytes() + layer.down.num_bytes() + layer.router.num_bytes() +
             layer.shared_gate_up.num_bytes() + layer.shared_down.num_bytes() +
             layer.per_layer_gate.num_bytes() + layer.per_layer_projection.num_bytes();
  }
  return total;
}

size_t Weights::num_bytes() const {
  size_t floats =
      final_norm.weight.size() + final_norm.bias.size() + positions.size() + per_layer_norm.size();
  for (const LayerWeights& layer : layers) {
    for (const auto* norm : {&layer.attn_norm,
                             &layer.attn_post_norm,
                             &layer.mlp_norm,
                             &layer.mlp_post_norm,
                             &layer.per_layer_norm,
                             &layer.experts_norm,
                             &layer.experts_post_norm,
                             &layer.dense_post_norm}) {
      floats += norm->weight.size() + norm->bias.size();
    }
    for (const auto* vector : {&layer.qkv_bias,
                               &layer.q_norm,
                               &layer.k_norm,
                               &layer.v_norm,
                               &layer.sinks,
                               &layer.o_bias,
                               &layer.gate_up_bias,
                               &layer.down_bias,
                               &layer.router_bias,
                               &layer.router_correction,
                               &layer.router_norm,
                               &layer.expert_scale}) {
      floats += vector->size();
    }
  }
  return matrix_bytes() + embedding_bytes + per_layer_embedding_bytes + floats * sizeof(float);
}

std::unique_ptr<Weights> build_weights(const ModelConfig& config,
                                       const ModelShard& shard,
                                       const TensorSource& source,
                                       const std::function<void(size_t, size_t)>& progress,
                                       const ops::ThreadPlan& threads) {
  Loader loader(config, shard, source);
  auto weights = loader.plan();
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  const ops::ThreadPlan readers = threads.num_threads > 0 ? threads : static_cast<int>(cores);
  read_parts(source, loader.parts(), readers, progress);
  weights->num_bytes_read = loader.num_bytes_read();
  return weights;
}

std::unique_ptr<Weights> load_weights(const std::filesystem::path& model_dir,
                                      const ModelConfig& config,
                                      const ModelShard& shard,
                                      const std::function<void(size_t, size_t)>& progress,
                                      const ops::ThreadPlan& threads) {
  const auto source = make_checkpoint_source(model_dir, config, shard.vocab);
  auto weights = build_weights(config, shard, *source, progress, threads);
  source->check_unchanged();
  return weights;
}

}  // namespace outrider
