// See pieces.h.
#include "models/weights/pieces.h"

#include "runtime/ops/ops.h"

namespace outrider {
namespace {

// q_a, or this rank's heads of q, then kv_a, which every rank has whole.
std::vector<Piece> latent_pieces(const ModelConfig& config,
                                 const ModelShard& shard,
                                 const LayerNames& names) {
  const LatentConfig& latent = config.latent;
  const WeightNames& family = config.names;
  const Range kv_rows = {0, config.head_dim};
  const Piece kv_a = {names.prefix + family.kv_a, config.head_dim, kv_rows};
  if (latent.q_rank > 0) {
    return {{names.prefix + family.q_a, latent.q_rank, {0, latent.q_rank}}, kv_a};
  }
  const int64_t query_dim = latent.query_dim();
  return {{names.q(), config.n_heads * query_dim, scaled(shard.heads, query_dim)}, kv_a};
}

// Rows from the end of one expert to the beginning of the next one.
int64_t zeros_between(int64_t n_out) { return ops::panels_of(n_out) * ops::kRowsPerPanel - n_out; }

}  // namespace

std::vector<Piece> qkv_pieces(const ModelConfig& config,
                              const ModelShard& shard,
                              const LayerNames& names) {
  if (config.is_latent()) return latent_pieces(config, shard, names);
  const int64_t head_dim = config.head_dim;
  const int64_t q_rows = config.n_heads * head_dim;
  const int64_t kv_rows = config.n_kv_heads * head_dim;
  const Range heads = scaled(shard.heads, head_dim);
  const Range kv = scaled(shard.kv_heads, head_dim);
  if (config.qkv_layout == QkvLayout::kSeparate) {
    std::vector<Piece> pieces = {{names.q(), q_rows, heads}};
    if (!names.family.k.empty()) pieces.push_back({names.k(), kv_rows, kv});
    if (!names.family.v.empty()) pieces.push_back({names.v(), kv_rows, kv});
    return pieces;
  }
  const int64_t rows = q_rows + 2 * kv_rows;
  if (config.qkv_layout == QkvLayout::kFused) {
    return {{names.qkv(), rows, heads},
            {names.qkv(), rows, shifted(kv, q_rows)},
            {names.qkv(), rows, shifted(kv, q_rows + kv_rows)}};
  }
  const int64_t group = config.n_heads / config.n_kv_heads;
  std::vector<Piece> pieces;
  const auto add = [&](int64_t kv_head, int64_t in_group) {
    const int64_t first = kv_head * (group + 2) + in_group;
    pieces.push_back({names.qkv(), rows, scaled({first, first + 1}, head_dim)});
  };
  for (int64_t h = shard.heads.begin; h < shard.heads.end; ++h) add(h / group, h % group);
  for (const int64_t part : {group, group + 1}) {
    for (int64_t h = shard.kv_heads.begin; h < shard.kv_heads.end; ++h) add(h, part);
  }
  return pieces;
}

int64_t kv_b_rows(const ModelConfig& config) {
  return int64_t{config.n_heads} * (config.latent.nope_dim + config.latent.value_dim);
}

TensorPart kv_b_part(const ModelConfig& config, const ModelShard& shard, const LayerNames& names) {
  const int64_t rank = config.latent.kv_rank;
  const Range rows = scaled(shard.heads, kv_b_rows(config) / config.n_heads);
  return {names.prefix + config.names.kv_b + ".weight", rank, rows, {0, rank}};
}

void cut_kv_b(const ModelConfig& config,
              const std::vector<float>& part,
              ops::DType dtype,
              LayerWeights& out) {
  const int64_t rank = config.latent.kv_rank;
  const int64_t nope = config.latent.nope_dim;
  const int64_t value_dim = config.latent.value_dim;
  const int64_t of_head = (nope + value_dim) * rank;
  const int64_t heads = std::ssize(part) / of_head;
  const int64_t key_rows = ops::panels_of(rank) * ops::kRowsPerPanel;
  const int64_t value_rows = ops::panels_of(value_dim) * ops::kRowsPerPanel;
  out.kv_b_keys = {heads * key_rows, nope, dtype};
  out.kv_b_values = {heads * value_rows, rank, dtype};
  std::vector<float> turned(static_cast<size_t>(rank * nope));
  for (int64_t h = 0; h < heads; ++h) {
    const float* own = part.data() + h * of_head;  // [nope + value_dim, rank]
    for (int64_t i = 0; i < rank; ++i) {
      for (int64_t j = 0; j < nope; ++j) {
        turned[static_cast<size_t>(i * nope + j)] = own[j * rank + i];
      }
    }
    out.kv_b_keys.fill_rows(h * key_rows, turned.data(), rank, nope, ops::DType::kF32);
    out.kv_b_values.fill_rows(h * value_rows, own + nope * rank, value_dim, rank, ops::DType::kF32);
  }
}

std::vector<Piece> expert_gate_up_pieces(const ModelConfig& config,
                                         const ModelShard& shard,
                                         const LayerNames& names) {
  const int64_t ffn = config.experts.ffn_dim;
  const Range own = shard.expert_ffn;
  const WeightNames& family = config.names;
  const std::string fused = names.prefix + family.experts_gate_up;
  const int64_t n_rows = 2 * ffn * config.experts.count;
  std::vector<Piece> pieces;
  for (int64_t e = 0; e < config.experts.count; ++e) {
    const int64_t before = e == 0 ? 0 : zeros_between(2 * own.size());
    if (config.experts.swiglu.limit > 0.0f) {  // its rows lie together
      pieces.push_back({fused, n_rows, scaled(shifted(own, ffn * e), 2), before});
    } else if (family.experts_gate_up.empty()) {
      pieces.push_back({names.expert(e, family.expert_gate), ffn, own, before});
      pieces.push_back({names.expert(e, family.expert_up), ffn, own});
    } else {
      pieces.push_back({fused, n_rows, shifted(own, 2 * ffn * e), before});
      pieces.push_back({fused, n_rows, shifted(own, 2 * ffn * e + ffn)});
    }
  }
  return pieces;
}

std::vector<Piece> expert_down_pieces(const ModelConfig& config, const LayerNames& names) {
  const int64_t hidden = config.hidden_dim;
  const WeightNames& family = config.names;
  const std::string fused = names.prefix + family.experts_down;
  std::vector<Piece> pieces;
  for (int64_t e = 0; e < config.experts.count; ++e) {
    const int64_t before = e == 0 ? 0 : zeros_between(hidden);
    if (family.experts_down.empty()) {
      pieces.push_back({names.expert(e, family.expert_down), hidden, {0, hidden}, before});
    } else {
      const int64_t n_rows = hidden * config.experts.count;
      pieces.push_back({fused, n_rows, scaled({e, e + 1}, hidden), before});
    }
  }
  return pieces;
}

std::vector<Piece> router_pieces(const ModelConfig& config, const LayerNames& names) {
  const int64_t count = config.experts.count;
  std::vector<Piece> pieces = {{names.prefix + config.names.router, count, {0, count}}};
  if (!config.experts.shared_gate) return pieces;
  pieces.push_back({names.prefix + config.names.shared_gate, 1, {0, 1}});
  return pieces;
}

}  // namespace outrider
