// See layout.h.
#include "models/gpu/layout.h"

#include "runtime/base/error.h"
#include "runtime/ops/ops.h"

namespace outrider {
namespace {

int32_t narrow(int64_t n) {
  OUTRIDER_CHECK(n >= 0 && n <= INT32_MAX);
  return static_cast<int32_t>(n);
}

GpuMatrixLayout plain(int64_t n_out, int64_t n_in) {
  const int32_t outputs = narrow(n_out);
  const int32_t inputs = narrow(n_in);
  return {
      .n_out = outputs, .n_in = inputs, .outputs = {{0, 0, outputs}}, .inputs = {{0, 0, inputs}}};
}

void add_end(int32_t end, gpu::SliceEnds& slices) {
  OUTRIDER_CHECK(slices.num_slices < gpu::kMaxSlices);
  slices.slice_ends[slices.num_slices++] = end;
}

struct Units {
  std::vector<Stretch> stretches;
  gpu::SliceEnds slices;  // on the device
  int32_t size = 0;       // on the device
  int32_t from_file = 0;
};

// Feed-forward units: each slice from a whole tile on; one slice when sums are not cut.
Units lay_out_ffn(Range own, const std::vector<Range>& slices) {
  Units units;
  units.from_file = narrow(own.size());
  for (const Range& slice : slices.empty() ? std::vector<Range>{own} : slices) {
    const int32_t count = narrow(slice.size());
    units.stretches.push_back({narrow(slice.begin - own.begin), units.size, count});
    units.size += gpu::padded(count, gpu::kTileInner);
    if (!slices.empty()) add_end(units.size, units.slices);
  }
  return units;
}

// MLPs one after the other: in the file each begins `stride` outputs behind the one before it.
struct Mlps {
  int32_t count = 1;
  int32_t stride = 0;
  bool take_turns = false;  // gate and up of a unit are neighbours in the file
};

// num_parts 2: gate, then up. is_fused: the product ends in what combines them.
GpuMatrixLayout gate_up_of(
    const Units& units, int32_t hidden, int32_t num_parts, bool is_fused, const Mlps& mlps = {}) {
  const int32_t of_one = num_parts * units.size;
  GpuMatrixLayout layout = plain(int64_t{mlps.count} * of_one, hidden);
  if (is_fused) {
    layout.order = gpu::RowOrder::kPairs;
    layout.span = units.size;
  }
  layout.outputs.clear();
  for (int32_t mlp = 0; mlp < mlps.count; ++mlp) {
    for (int32_t second = 0; second < num_parts; ++second) {
      for (Stretch s : units.stretches) {
        s.step = mlps.take_turns ? 2 : 1;
        s.from =
            mlp * mlps.stride + s.step * s.from + second * (mlps.take_turns ? 1 : units.from_file);
        s.to += mlp * of_one + second * units.size;
        layout.outputs.push_back(s);
      }
    }
  }
  return layout;
}

GpuMatrixLayout down_of(const Units& units, int32_t hidden, const Mlps& mlps = {}) {
  const int32_t of_one = mlps.count == 1 ? hidden : gpu::padded(hidden, gpu::kTileOutputs);
  GpuMatrixLayout layout = plain(int64_t{mlps.count} * of_one, units.size);
  layout.inputs = units.stretches;
  layout.slices = units.slices;
  layout.outputs.clear();
  for (int32_t mlp = 0; mlp < mlps.count; ++mlp) {
    layout.outputs.push_back({mlp * mlps.stride, mlp * of_one, hidden});
  }
  return layout;
}

// The file's matrices have each expert from a whole panel on (ops::ExpertMatrix), its biases not.
GpuExpertLayout lay_out_experts(const ModelConfig& config, const ModelShard& shard) {
  const Units units = lay_out_ffn(shard.expert_ffn, shard.expert_slices);
  const int32_t hidden = config.hidden_dim;
  const auto in_panels = [](int32_t n) { return narrow(ops::panels_of(n) * ops::kRowsPerPanel); };
  Mlps mlps = {.count = config.experts.count, .take_turns = config.experts.swiglu.limit > 0.0f};
  const auto with_stride = [&mlps](int32_t stride) {
    mlps.stride = stride;
    return mlps;
  };
  const int32_t own = 2 * units.from_file;
  GpuExpertLayout layout;
  layout.ffn = units.size;
  layout.gate_up = gate_up_of(units, hidden, 2, true, with_stride(in_panels(own)));
  layout.gate_up_bias = gate_up_of(units, hidden, 2, true, with_stride(own));
  layout.down = down_of(units, hidden, with_stride(in_panels(hidden)));
  layout.down_bias = down_of(units, hidden, with_stride(hidden));
  if (config.experts.shared_ffn_dim == 0) return layout;
  const Units shared = lay_out_ffn(shard.shared_ffn, shard.shared_slices);
  layout.shared_ffn = shared.size;
  layout.shared_gate_up = gate_up_of(shared, hidden, 2, true);
  layout.shared_down = down_of(shared, hidden);
  return layout;
}

gpu::SliceEnds head_slices(const ModelConfig& config, const ModelShard& shard) {
  gpu::SliceEnds slices;
  for (const Range& slice : shard.head_slices) {
    add_end(narrow((slice.end - shard.heads.begin) * config.value_dim()), slices);
  }
  return slices;
}

// Whether products can turn queries and keys themselves: halves of a head must be whole halves of
// tiles, and nothing may come between product and turn, nor after it.
bool turns_whole_heads(const ModelConfig& config) {
  const RopeConfig local = config.local_rope.value_or(config.rope);
  return config.rope.rotary_dim == config.head_dim && local.rotary_dim == config.head_dim &&
         !config.rope.interleaved && !config.qk_norm && !config.alibi &&
         !config.names.has_positions() && config.no_rope_layers.empty() &&
         config.query_growth == 0.0f && config.kv_shared_layers == 0 && !config.v_norm &&
         config.head_dim % gpu::kTileOutputs == 0;
}

// Queries, and what the layer has of keys and values.
int64_t num_heads(const ModelConfig& config, const ModelShard& shard) {
  const int64_t halves = (config.names.k.empty() ? 0 : 1) + (config.names.v.empty() ? 0 : 1);
  return shard.heads.size() + halves * shard.kv_heads.size();
}

// The file's rows are those of the queries, then the key's latent, then what turns of it.
void lay_out_latent(const ModelConfig& config, const ModelShard& shard, GpuLayout& layout) {
  const LatentConfig& latent = config.latent;
  const int32_t queries = narrow(shard.heads.size() * latent.query_dim());
  const bool is_low = latent.q_rank > 0;
  const int32_t first = is_low ? latent.q_rank : queries;
  layout.qkv = plain(config.head_dim, config.hidden_dim);
  layout.qkv.outputs = {{first, latent.rope_dim, latent.kv_rank},
                        {first + latent.kv_rank, 0, latent.rope_dim}};
  if (is_low) layout.q_a = plain(latent.q_rank, config.hidden_dim);
  layout.kv_b_elements = shard.heads.size() * (latent.nope_dim + latent.value_dim) * latent.kv_rank;
  layout.q = plain(queries, is_low ? latent.q_rank : config.hidden_dim);
}

}  // namespace

GpuLayout gpu_layout(const ModelConfig& model, const ModelShard& model_shard, int32_t layer) {
  OUTRIDER_CHECK(model.experts.count == 0 || !model.parallel_mlp);  // no family has both
  const ModelConfig config = model.of_layer(layer);
  const ModelShard shard = shard_of_layer(model, model_shard, layer);
  const int32_t head_dim = config.head_dim;
  const Units units = lay_out_ffn(shard.ffn, shard.ffn_slices);
  GpuLayout layout;
  layout.qkv_is_fused = turns_whole_heads(config);
  layout.qkv = plain(num_heads(config, shard) * head_dim, config.hidden_dim);
  if (layout.qkv_is_fused) {
    layout.qkv.order = gpu::RowOrder::kHalves;
    layout.qkv.span = head_dim / 2;
  }
  if (config.is_latent()) lay_out_latent(config, shard, layout);
  layout.o = plain(config.hidden_dim, shard.heads.size() * config.value_dim());
  layout.o.slices = head_slices(config, shard);
  layout.mlp_is_fused = config.gated_mlp && config.activation == ops::ActivationKind::kSilu;
  const bool has_experts = model.has_experts(layer);
  if (has_experts) layout.experts = lay_out_experts(config, shard);
  if (!has_experts || model.experts.beside_mlp) {
    layout.ffn = units.size;
    layout.gate_up =
        gate_up_of(units, config.hidden_dim, config.gated_mlp ? 2 : 1, layout.mlp_is_fused);
    layout.down = down_of(units, config.hidden_dim);
  }
  if (config.per_layer_dim > 0) {
    const int64_t all = int64_t{config.n_layers} * config.per_layer_dim;
    layout.per_layer_gate = plain(config.per_layer_dim, config.hidden_dim);
    layout.per_layer_projection = plain(config.hidden_dim, config.per_layer_dim);
    layout.per_layer_model_projection = plain(all, config.hidden_dim);
  }
  layout.head = plain(shard.vocab.size(), config.hidden_dim);
  return layout;
}

}  // namespace outrider
