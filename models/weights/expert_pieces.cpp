// See expert_pieces.h.
#include "models/weights/expert_pieces.h"

#include "runtime/ops/ops.h"

namespace outrider {
namespace {

// Rows from the end of one expert to the beginning of the next one.
int64_t zeros_between(int64_t n_out) { return ops::panels_of(n_out) * ops::kRowsPerPanel - n_out; }

}  // namespace

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
