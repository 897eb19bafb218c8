// See gguf_names.h. llama.cpp's names are those of gguf-py's constants.py.
#include "models/weights/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "runtime/base/error.h"

namespace outrider {
namespace {

struct Role {
  std::string WeightNames::*folder;
  std::string_view gguf;
  bool is_vector = false;
};

constexpr bool kVector = true;
constexpr Role kModelRoles[] = {
    {&WeightNames::embedding, "token_embd"},
    {&WeightNames::positions, "position_embd"},
    {&WeightNames::final_norm, "output_norm", kVector},
    {&WeightNames::head, "output"},
};
constexpr Role kLayerRoles[] = {
    {&WeightNames::attn_norm, "attn_norm", kVector},
    {&WeightNames::q, "attn_q"},
    {&WeightNames::k, "attn_k"},
    {&WeightNames::v, "attn_v"},
    {&WeightNames::qkv, "attn_qkv"},
    {&WeightNames::q_norm, "attn_q_norm", kVector},
    {&WeightNames::k_norm, "attn_k_norm", kVector},
    {&WeightNames::o, "attn_output"},
    {&WeightNames::q_a, "attn_q_a"},
    {&WeightNames::q_a_norm, "attn_q_a_norm", kVector},
    {&WeightNames::q_b, "attn_q_b"},
    {&WeightNames::kv_a, "attn_kv_a_mqa"},
    {&WeightNames::kv_a_norm, "attn_kv_a_norm", kVector},
    {&WeightNames::attn_post_norm, "post_attention_norm", kVector},
    {&WeightNames::mlp_norm, "ffn_norm", kVector},
    {&WeightNames::gate, "ffn_gate"},
    {&WeightNames::up, "ffn_up"},
    {&WeightNames::gate_up, "ffn_up"},
    {&WeightNames::down, "ffn_down"},
    {&WeightNames::mlp_post_norm, "post_ffw_norm", kVector},
    {&WeightNames::router, "ffn_gate_inp"},
    {&WeightNames::shared_gate, "ffn_gate_inp_shexp"},
};
// Those whose folder's name is a whole one.
constexpr Role kWholeRoles[] = {
    {&WeightNames::sinks, "attn_sinks.weight", kVector},
    {&WeightNames::router_correction, "exp_probs_b.bias", kVector},
};
// Of an expert, or, where `of_all` has a name, of all experts in one tensor.
struct ExpertRole {
  std::string WeightNames::*of_one;
  std::string WeightNames::*of_all;
  std::string_view gguf;
};
constexpr ExpertRole kExpertRoles[] = {
    {&WeightNames::expert_gate, &WeightNames::experts_gate_up, "ffn_gate_exps"},
    {&WeightNames::expert_up, &WeightNames::experts_gate_up, "ffn_up_exps"},
    {&WeightNames::expert_down, &WeightNames::experts_down, "ffn_down_exps"},
};

// Norms that llama.cpp calls otherwise.
struct OtherName {
  std::string_view model_type;
  std::string_view folder;
  std::string_view gguf;
};
constexpr OtherName kOtherNames[] = {
    {"gpt_oss", "post_attention_layernorm", "post_attention_norm"},
    {"glm4_moe", "post_attention_layernorm", "post_attention_norm"},
    {"falcon", "ln_attn", "attn_norm_2"},
    {"falcon", "ln_mlp", "attn_norm"},
};

// Architectures that turn pairs of neighbours where Hugging Face turns halves of a head: their
// files have the rows of q and k in that order.
constexpr std::string_view kTurned[] = {
    "llama", "mixtral", "granite", "granitemoe", "smollm3", "ministral3"};

// What follows `stem`; nothing when the name begins otherwise.
bool take(std::string_view name, std::string_view stem, std::string_view& rest) {
  if (stem.empty() || !name.starts_with(stem)) return false;
  rest = name.substr(stem.size());
  return true;
}

// "7.rest" as 7 and "rest".
int64_t take_number(std::string_view& text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != '.') return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return number;
}

}  // namespace

bool GgufNames::is_turned(std::string_view name) const {
  if (std::find(std::begin(kTurned), std::end(kTurned), config_.model_type) == std::end(kTurned))
    return false;
  const std::string_view stem = name.substr(0, name.rfind('.'));
  return stem.ends_with(config_.names.q) || stem.ends_with(config_.names.k);
}

// Of experts, routed and shared; rest: after the layer's number.
bool GgufNames::view_expert(std::string_view rest, GgufView& view) const {
  const WeightNames& names = config_.names;
  std::string_view tail;
  for (const ExpertRole& role : kExpertRoles) {
    const std::string& of_all = names.*role.of_all;
    const bool has_all = take(rest, of_all, tail) && (tail == ".weight" || tail == "_bias");
    if (has_all) {
      view.tensors.push_back(fmt::format("{}.{}", role.gguf, tail.substr(1)));
      view.count = config_.experts.count;
      view.is_vector = tail == "_bias";
    }
  }
  if (!view.tensors.empty()) return true;
  if (take(rest, names.experts + ".", tail)) {
    view.index = take_number(tail);
    for (const ExpertRole& role : kExpertRoles) {
      if (tail != names.*role.of_one + ".weight") continue;
      view.tensors.push_back(fmt::format("{}.weight", role.gguf));
      view.count = config_.experts.count;
      return true;
    }
  }
  if (!take(rest, names.shared_expert + ".", tail)) return false;
  for (const char* part : {"gate", "up", "down"}) {
    if (tail != fmt::format("{}_proj.weight", part)) continue;
    view.tensors.push_back(fmt::format("ffn_{}_shexp.weight", part));
    return true;
  }
  return false;
}

// Of what is no expert: the file's name, without the layer.
std::string GgufNames::file_name(std::string_view rest, GgufView& view) const {
  const WeightNames& names = config_.names;
  for (const Role& role : kWholeRoles) {
    if (rest != names.*role.folder) continue;
    view.is_vector = true;
    return std::string(role.gguf);
  }
  std::string_view tail;
  for (const Role& role : kLayerRoles) {
    if (!take(rest, names.*role.folder, tail) || !tail.starts_with('.')) continue;
    tail.remove_prefix(1);
    if (const int64_t head = take_number(tail); head >= 0) {  // a norm of each head
      view.index = head;
      view.count = role.folder == &WeightNames::q_norm ? config_.n_heads : config_.n_kv_heads;
    }
    if (tail != "weight" && tail != "bias") continue;
    view.is_vector = role.is_vector || tail == "bias";
    std::string_view name = role.gguf;
    for (const OtherName& other : kOtherNames)
      if (config_.model_type == other.model_type && names.*role.folder == other.folder)
        name = other.gguf;
    return fmt::format("{}.{}", name, tail);
  }
  OUTRIDER_CHECK(false);  // a name that weight_names.h has and this table not
}

GgufView GgufNames::view(std::string_view name) const {
  GgufView view;
  std::string_view rest;
  const WeightNames& names = config_.names;
  for (const Role& role : kModelRoles) {
    if (!take(name, names.*role.folder + ".", rest) || rest.find('.') != std::string_view::npos)
      continue;
    view.is_vector = role.is_vector || rest == "bias";
    view.tensors.push_back(fmt::format("{}.{}", role.gguf, rest));
    return view;
  }
  OUTRIDER_CHECK(take(name, names.layers, rest));
  const int64_t layer = take_number(rest);
  if (config_.is_latent() && rest == names.kv_b + ".weight") {
    view.is_turned_over = true;
    for (const char* part : {"k", "v"})
      view.tensors.push_back(fmt::format("blk.{}.attn_{}_b.weight", layer, part));
    return view;
  }
  if (!config_.has_experts(static_cast<int32_t>(layer)) || !view_expert(rest, view))
    view.tensors.push_back(file_name(rest, view));
  for (std::string& tensor : view.tensors) tensor = fmt::format("blk.{}.{}", layer, tensor);
  return view;
}

GgufNames::Row GgufNames::row_in_file(std::string_view name,
                                      const GgufView& view,
                                      int64_t num_rows,
                                      int64_t row) const {
  if (view.tensors.size() == 2) {  // gate and up of all experts
    const int64_t ffn = config_.experts.ffn_dim;
    const int64_t expert = row / (2 * ffn);
    const int64_t i = row % (2 * ffn);
    const bool take_turns = config_.experts.swiglu.limit > 0.0f;
    const auto which = static_cast<size_t>(take_turns ? i % 2 : i / ffn);
    return {which, expert * ffn + (take_turns ? i / 2 : i % ffn)};
  }
  if (view.index >= 0) return {0, view.index * num_rows + row};
  const int64_t head_dim = config_.head_dim;
  const int64_t in_head = row % head_dim;
  if (is_turned(name)) {
    const int64_t half = head_dim / 2;
    return {0, row - in_head + in_head % half * 2 + in_head / half};
  }
  const std::string_view stem = name.substr(0, name.rfind('.'));
  const bool is_grouped = config_.qkv_layout == QkvLayout::kGrouped;
  if (!is_grouped || !stem.ends_with(config_.names.qkv)) return {0, row};
  // The file has all queries, all keys, all values.
  const int64_t group = config_.n_heads / config_.n_kv_heads;
  const int64_t kv_head = row / head_dim / (group + 2);
  const int64_t in_group = row / head_dim % (group + 2);
  const int64_t head = in_group < group    ? kv_head * group + in_group
                       : in_group == group ? config_.n_heads + kv_head
                                           : config_.n_heads + config_.n_kv_heads + kv_head;
  return {0, head * head_dim + in_head};
}

}  // namespace outrider
