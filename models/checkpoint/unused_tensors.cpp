// See unused_tensors.h.
#include "models/checkpoint/unused_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "models/checkpoint/weight_names.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;

bool is_zero(const Checkpoint::Entry& entry) {
  const TensorInfo& info = *entry.info;
  const uint64_t size = info.dtype ? ops::dtype_bytes(*info.dtype) : 1;
  const uint64_t end = info.end - info.begin;
  std::vector<unsigned char> bytes(kChunkBytes);
  for (uint64_t at = 0; at < end; at += kChunkBytes) {
    const uint64_t count = std::min(kChunkBytes, end - at);
    entry.file->read(info, at, bytes.data(), count);
    for (uint64_t i = 0; i < count; ++i) {
      // The last byte of a float has its sign: minus zero is zero.
      const bool has_sign = info.dtype && i % size == size - 1;
      if ((bytes[i] & (has_sign ? 0x7f : 0xff)) != 0) return false;
    }
  }
  return true;
}

void refuse_bias(const Checkpoint& checkpoint, const std::string& name) {
  const Checkpoint::Entry entry = checkpoint.find(name);
  if (entry.info == nullptr || is_zero(entry)) return;
  throw Error(fmt::format("{}: tensor \"{}\" is not zero, but by config.json there is no such bias",
                          entry.file->name(),
                          name));
}

void refuse_tensor(const Checkpoint& checkpoint,
                   const std::string& name,
                   const ModelConfig& config) {
  const Checkpoint::Entry entry = checkpoint.find(name);
  if (entry.info == nullptr) return;
  throw Error(fmt::format("{}: tensor \"{}\" is there, but model_type {} has no such tensor",
                          entry.file->name(),
                          name,
                          config.model_type));
}

void refuse_of_experts(const Checkpoint& checkpoint,
                       const LayerNames& names,
                       const ModelConfig& config) {
  const WeightNames& family = config.names;
  if (!config.experts.biases) {
    refuse_bias(checkpoint, names.prefix + family.router + ".bias");
    for (const char* fused : {"gate_up_proj", "down_proj"}) {
      refuse_bias(checkpoint, names.prefix + family.experts + "." + fused + "_bias");
    }
  }
  for (const std::string& part : {family.expert_gate, family.expert_up, family.expert_down}) {
    refuse_bias(checkpoint, names.expert(0, part) + ".bias");
    refuse_tensor(checkpoint, names.expert(config.experts.count, part) + ".weight", config);
  }
  if (!config.experts.correction) {
    refuse_bias(checkpoint, names.prefix + family.router_correction);
  }
  if (config.experts.shared_ffn_dim > 0) return;
  for (const char* shared : {"mlp.shared_expert", "mlp.shared_experts", "shared_mlp"}) {
    for (const char* up : {".up_proj.weight", ".input_linear.weight"}) {
      refuse_tensor(checkpoint, names.prefix + shared + up, config);
    }
  }
}

void refuse_of_layer(const Checkpoint& checkpoint, int32_t layer, const ModelConfig& config) {
  const LayerNames names(layer, config.names);
  const auto refuse_unless = [&](bool is_used, const std::vector<std::string>& projections) {
    if (is_used) return;
    for (const std::string& name : projections) refuse_bias(checkpoint, name + ".bias");
  };
  const WeightNames& family = config.names;
  refuse_unless(config.attention_bias,
                {names.q(),
                 names.k(),
                 names.v(),
                 names.qkv(),
                 names.prefix + family.q_a,
                 names.prefix + family.kv_a});
  refuse_unless(config.attention_out_bias, {names.o()});
  refuse_unless(config.mlp_bias, {names.gate(), names.up(), names.gate_up(), names.down()});
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    refuse_unless(config.norm_bias, {names.prefix + norm});
  }
  if (config.experts.count > 0) refuse_of_experts(checkpoint, names, config);
  if (!config.qk_norm) {
    refuse_tensor(checkpoint, names.q_norm(), config);
    refuse_tensor(checkpoint, names.k_norm(), config);
  }
  const std::set<std::string> own = {
      family.attn_norm, family.attn_post_norm, family.mlp_norm, family.mlp_post_norm};
  for (const char* other : {"input_layernorm",
                            "post_attention_layernorm",
                            "pre_feedforward_layernorm",
                            "post_feedforward_layernorm",
                            "post_self_attn_layernorm",
                            "post_mlp_layernorm"}) {
    if (!own.contains(other)) refuse_tensor(checkpoint, names.prefix + other + ".weight", config);
  }
  if (family.sinks.empty()) refuse_tensor(checkpoint, names.prefix + "self_attn.sinks", config);
  if (config.k_is_v(layer)) {
    refuse_tensor(checkpoint, names.v() + ".weight", config);
  }
  if (config.per_layer_dim == 0) {
    refuse_tensor(checkpoint, names.prefix + family.per_layer_gate + ".weight", config);
  }
}

bool same_rows(const Checkpoint::Entry& a, const Checkpoint::Entry& b, Range rows) {
  if (a.info->shape != b.info->shape || a.info->type_name != b.info->type_name) return false;
  if (a.info->shape.size() != 2 || a.info->shape[0] == 0) return false;
  const auto num_rows = static_cast<uint64_t>(a.info->shape[0]);
  const uint64_t row_bytes = (a.info->end - a.info->begin) / num_rows;
  const uint64_t end = std::min<uint64_t>(num_rows, static_cast<uint64_t>(rows.end)) * row_bytes;
  std::vector<char> left(kChunkBytes);
  std::vector<char> right(kChunkBytes);
  for (uint64_t at = static_cast<uint64_t>(rows.begin) * row_bytes; at < end; at += kChunkBytes) {
    const uint64_t size = std::min(kChunkBytes, end - at);
    a.file->read(*a.info, at, left.data(), size);
    b.file->read(*b.info, at, right.data(), size);
    if (!std::equal(left.begin(), left.begin() + static_cast<ptrdiff_t>(size), right.begin()))
      return false;
  }
  return true;
}

void refuse_other_head(const Checkpoint& checkpoint, const WeightNames& names, Range vocab) {
  const Checkpoint::Entry head = checkpoint.find(names.head + ".weight");
  const Checkpoint::Entry embedding = checkpoint.find(names.embedding + ".weight");
  if (head.info == nullptr || embedding.info == nullptr) return;
  if (same_rows(head, embedding, vocab)) return;
  throw Error(
      fmt::format("{}: tensor \"{}\" differs from \"{}\", but config.json has "
                  "tie_word_embeddings true: set it to false to use that head",
                  head.file->name(),
                  names.head + ".weight",
                  names.embedding + ".weight"));
}

}  // namespace

void refuse_unused_tensors(const Checkpoint& checkpoint, const ModelConfig& config, Range vocab) {
  if (config.tied_head) refuse_other_head(checkpoint, config.names, vocab);
  refuse_bias(checkpoint, config.names.head + ".bias");
  if (!config.norm_bias) refuse_bias(checkpoint, config.names.final_norm + ".bias");
  for (int32_t layer = 0; layer < config.n_layers; ++layer)
    refuse_of_layer(checkpoint, layer, config);
}

void log_left_out(const Checkpoint& checkpoint, const ModelConfig& config) {
  int64_t count = checkpoint.num_tensors("mtp.");
  for (int32_t layer = config.n_layers;; ++layer) {
    const int64_t of_layer = checkpoint.num_tensors(LayerNames(layer, config.names).prefix);
    if (of_layer == 0) break;
    count += of_layer;
  }
  if (count == 0) return;
  log_info(
      "{}: {} tensors are not loaded: layers from {} on, and heads that predict more tokens (MTP)",
      checkpoint.origin(),
      count,
      config.n_layers);
}

}  // namespace outrider
