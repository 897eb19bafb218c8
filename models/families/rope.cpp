// Rotary positions as config.json gives them; see readers.h.
#include <fmt/format.h>

#include <cmath>

#include "models/families/readers.h"

namespace outrider {
namespace {

struct NamedScaling {
  const char* name;
  RopeScaling scaling;
};
constexpr NamedScaling kScalings[] = {{"default", RopeScaling::kNone},
                                      {"linear", RopeScaling::kLinear},
                                      {"dynamic", RopeScaling::kDynamic},
                                      {"llama3", RopeScaling::kLlama3},
                                      {"yarn", RopeScaling::kYarn},
                                      {"longrope", RopeScaling::kLongRope},
                                      {"proportional", RopeScaling::kProportional}};

RopeScaling scaling_from_name(const ConfigFields& fields, const std::string& name, bool longrope) {
  // Phi-3's first files call it so.
  if (longrope && (name == "su" || name == "yarn")) return RopeScaling::kLongRope;
  for (const NamedScaling& known : kScalings) {
    if (name == known.name) return known.scaling;
  }
  fields.fail(fmt::format(
      "rope type \"{}\" is not supported; known are default, linear, dynamic, llama3, yarn, "
      "longrope and proportional",
      name));
}

// The factor on cos and sin of Peng et al. 2023 (YaRN), section 3.4, in Hugging Face's reading.
double yarn_attention_factor(const ConfigFields& fields, double factor) {
  if (fields.optional_number("attention_factor")) {
    return fields.number_or("attention_factor", 1e-3, 1e3, 1.0);
  }
  const auto mscale_of = [factor](double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  const double mscale = fields.number_or("mscale", 0.0, 1e3, 0.0);
  const double mscale_all_dim = fields.number_or("mscale_all_dim", 0.0, 1e3, 0.0);
  if (mscale > 0.0 && mscale_all_dim > 0.0) return mscale_of(mscale) / mscale_of(mscale_all_dim);
  return mscale_of(1.0);
}

std::vector<double> pair_factors(const ConfigFields& fields, const char* key, size_t count) {
  const auto factors = fields.numbers(key);
  if (!factors || factors->size() != count) {
    fields.fail(fmt::format("\"{}\" must list {} numbers", key, count));
  }
  for (const double factor : *factors) {
    if (!(factor >= 1e-3 && factor <= 1e6)) fields.fail(fmt::format("\"{}\" is out of range", key));
  }
  return *factors;
}

// LongRoPE (Ding et al. 2402.13753) in Hugging Face's reading.
void read_longrope(const ConfigFields& fields, RopeConfig& rope) {
  const auto pairs = static_cast<size_t>(rope.rotary_dim / 2);
  rope.short_factors = pair_factors(fields, "short_factor", pairs);
  rope.long_factors = pair_factors(fields, "long_factor", pairs);
  const double computed =
      rope.factor <= 1.0
          ? 1.0
          : std::sqrt(1.0 + std::log(rope.factor) / std::log(rope.original_max_positions));
  rope.attention_factor = fields.number_or("attention_factor", 1e-3, 1e3, computed);
  if (!std::isfinite(rope.attention_factor)) fields.fail("the original length is too short");
}

std::string type_of(const ConfigFields& fields) {
  return fields.text_or("rope_type", fields.text_or("type", "default").c_str());
}

void read_scaling(const ConfigFields& fields,
                  const ModelConfig& config,
                  bool longrope,
                  RopeConfig& rope) {
  rope.scaling = scaling_from_name(fields, type_of(fields), longrope);
  rope.original_max_positions = fields.integer_or(
      "original_max_position_embeddings", {1, kMaxPositions}, rope.original_max_positions);
  if (rope.scaling == RopeScaling::kNone) return;
  if (rope.scaling == RopeScaling::kProportional) {
    rope.turning_share = fields.number_or("partial_rotary_factor", 0.0, 1.0, 1.0);
    rope.factor = fields.number_or("factor", 1e-3, 1e6, 1.0);
    return;
  }
  const bool computed_factor =
      (rope.scaling == RopeScaling::kYarn || rope.scaling == RopeScaling::kLongRope) &&
      !fields.is_set("factor");
  if (!computed_factor && !fields.is_set("factor")) fields.fail("\"factor\" is missing");
  rope.factor = computed_factor
                    ? static_cast<double>(config.max_positions) / rope.original_max_positions
                    : fields.number_or("factor", 1e-3, 1e6, 1.0);
  if (rope.scaling == RopeScaling::kLlama3) {
    rope.low_freq_factor = fields.number_or("low_freq_factor", 1e-3, 1e6, 1.0);
    rope.high_freq_factor = fields.number_or("high_freq_factor", 1e-3, 1e6, 4.0);
    if (!(rope.high_freq_factor > rope.low_freq_factor)) {
      fields.fail("\"high_freq_factor\" must be larger than \"low_freq_factor\"");
    }
  }
  if (rope.scaling == RopeScaling::kYarn) {
    rope.beta_fast = fields.number_or("beta_fast", 1e-3, 1e6, 32.0);
    rope.beta_slow = fields.number_or("beta_slow", 1e-3, 1e6, 1.0);
    rope.yarn_truncate = fields.flag_or("truncate", true);
    rope.attention_factor = yarn_attention_factor(fields, rope.factor);
  }
  if (rope.scaling == RopeScaling::kLongRope) read_longrope(fields, rope);
}

// The share of a head that turns, rounded down to whole dimensions.
int32_t rotary_dim_of(const ConfigFields& fields, const ModelConfig& config, double share) {
  const auto dim = static_cast<int32_t>(config.head_dim * share);
  if (dim < 2 || dim % 2 != 0) {
    fields.fail(fmt::format("rotating {} of {} dimensions is not supported", dim, config.head_dim));
  }
  return dim;
}

double read_partial(const ConfigFields& fields, const char* key, bool honoured, double otherwise) {
  const double share = fields.number_or(key, 0.0, 1.0, otherwise);
  if (!honoured && share != 1.0) fields.fail("partial_rotary_factor other than 1 is not supported");
  return share;
}

void read_object(const ConfigFields& inner,
                 const ModelConfig& config,
                 const RopeKeys& keys,
                 RopeConfig& rope) {
  if (inner.is_set("mrope_section")) inner.fail("mrope_section is not supported");
  if (inner.is_set("full_attention") || inner.is_set("sliding_attention")) {
    inner.fail("one rope per kind of layer is not supported");
  }
  if (type_of(inner) != "proportional") {
    const bool honoured = keys.partial != nullptr;
    const double share = static_cast<double>(rope.rotary_dim) / config.head_dim;
    rope.rotary_dim =
        rotary_dim_of(inner, config, read_partial(inner, "partial_rotary_factor", honoured, share));
  }
  rope.theta = inner.number_or("rope_theta", 1.0, 1e12, rope.theta);
  read_scaling(inner, config, keys.longrope, rope);
  inner.know({"finetuned",
              "mscale",
              "mscale_all_dim",
              "beta_fast",
              "beta_slow",
              "attention_factor",
              "factor",
              "low_freq_factor",
              "high_freq_factor",
              "llama_4_scaling_beta",
              "max_position_embeddings"});
  for (const std::string& key : inner.unknown_keys()) {
    inner.fail(fmt::format("{} is not supported", key.substr(0, 100)));
  }
}

}  // namespace

void read_rope(const ConfigFields& fields, ModelConfig& config, const RopeKeys& keys) {
  RopeConfig& rope = config.rope;
  const char* partial = keys.partial != nullptr ? keys.partial : "partial_rotary_factor";
  rope.rotary_dim = rotary_dim_of(
      fields, config, read_partial(fields, partial, keys.partial != nullptr, keys.default_partial));
  // Some files give the length beside the scaling, not inside it.
  rope.original_max_positions = fields.integer_or(
      "original_max_position_embeddings", {1, kMaxPositions}, config.max_positions);
  rope.theta = fields.number_or(keys.theta, 1.0, 1e12, keys.default_theta);
  if (keys.of_kinds) {
    config.local_rope = rope;
    config.local_rope->theta =
        fields.number_or("rope_local_base_freq", 1.0, 1e12, keys.local_theta);
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto object = fields.object(key);
    if (!object) continue;
    const bool is_split = keys.of_kinds && object->is_set("full_attention");
    read_object(is_split ? *object->object("full_attention") : *object, config, keys, rope);
    if (is_split && object->is_set("sliding_attention")) {
      read_object(*object->object("sliding_attention"), config, keys, *config.local_rope);
    }
  }
  if (!(rope.theta > 1.0)) fields.fail(fmt::format("\"{}\" must be larger than 1", keys.theta));
}

}  // namespace outrider
