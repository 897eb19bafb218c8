// See spec.h.
#include "models/simulated/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>

#include "models/checkpoint/checked_json.h"
#include "models/simulated/law.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers/exact_math.h"
#include "runtime/base/numbers/rng.h"

namespace outrider {
namespace {

constexpr std::string_view kPrefix = "sim:";
constexpr double kMostMs = 1e6;  // of any part of a step's cost
constexpr size_t kMaxCurveBytes = size_t{64} << 20;

// Dense models in bf16 on GPUs of 3.35 TB/s and 989 TFLOP/s (an H100's data sheet), of which 80%
// and 50% are taken to be reached, and 10 us for a sum over ranks:
//   step_ms = 2 B * params / tp / bandwidth, row_ms = 2 * params / tp / arithmetic,
//   kv_us = 1000 * 4 B * layers * kv_dim / tp / bandwidth,
//   context_us = 1000 * 4 * layers * hidden / tp / arithmetic.
// The parts are added, though a GPU overlaps some of them: a rehearsal, no prediction.
struct Preset {
  const char* name;
  double params;
  int tp;
  int32_t layers;
  double kv_dim;
  double hidden;
};
constexpr Preset kPresets[] = {
    {"llama-70b-tp8", 70.6e9, 8, 80, 1024, 8192},
    {"llama-70b-tp4", 70.6e9, 4, 80, 1024, 8192},
    {"llama-8b", 8.03e9, 1, 32, 1024, 4096},
    {"llama-1b", 1.24e9, 1, 16, 512, 2048},
};

void apply(const Preset& preset, SimulatedSpec* spec) {
  constexpr double kBytesPerMs = 3.35e12 * 0.8 / 1e3;
  constexpr double kFlopsPerMs = 989e12 * 0.5 / 1e3;
  spec->step_ms = {2 * preset.params / preset.tp / kBytesPerMs};
  spec->row_ms = {2 * preset.params / preset.tp / kFlopsPerMs};
  spec->kv_us = 1e3 * 1000 * 4 * preset.layers * preset.kv_dim / preset.tp / kBytesPerMs;
  spec->context_us = 1e3 * 1000 * 4 * preset.layers * preset.hidden / preset.tp / kFlopsPerMs;
  spec->layers = preset.layers;
  spec->link_us = preset.tp > 1 ? 10 : 0;
}

[[noreturn]] void refuse(std::string_view key, std::string_view value, const std::string& wanted) {
  throw Error(fmt::format("simulated model: {} must be {}, not '{}'",
                          key,
                          wanted,
                          printable(std::string(value.substr(0, 100)))));
}

template <typename Number>
Number number_of(std::string_view key, std::string_view text, Number least, Number most) {
  Number value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool inside = value >= least && value <= most;  // false for NaN
  if (problem != std::errc() || end != text.data() + text.size() || !inside)
    refuse(key, text, fmt::format("a number from {} to {}", least, most));
  return value;
}

std::vector<std::string_view> cut(std::string_view text, char between) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(between);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<double> list_of(std::string_view key,
                            std::string_view text,
                            double least,
                            double most) {
  std::vector<double> values;
  for (const std::string_view part : cut(text, '/'))
    values.push_back(number_of<double>(key, part, least, most));
  return values;
}

std::vector<double> alphas_of(std::string_view text) {
  std::vector<double> values = list_of("alpha", text, 0, 1);
  for (const double alpha : values) {
    if (alpha == 0 || alpha == 1 || (alpha >= 0.1 && alpha <= 0.99)) continue;
    refuse("alpha", text, "0, from 0.1 to 0.99, or 1");
  }
  return values;
}

std::vector<std::pair<int32_t, double>> read_curve(const std::string& path) {
  const std::string text = read_json_file(path, {.max_bytes = kMaxCurveBytes, .max_depth = 16});
  const nlohmann::json report = nlohmann::json::parse(text);
  std::vector<std::pair<int32_t, double>> curve;
  const auto series = report.find("series");
  if (series != report.end() && series->is_array()) {
    for (const auto& one : *series) {
      if (!one.is_object() || one.value("name", nlohmann::json()) != "step" ||
          one.value("unit", nlohmann::json()) != "ms" ||
          one.value("x_name", nlohmann::json()) != "rows") {
        continue;
      }
      const auto rows = one.find("x");
      const auto ms = one.find("median");
      const bool good = rows != one.end() && rows->is_number() && ms != one.end() &&
                        ms->is_number() && rows->get<double>() >= 1 && rows->get<double>() <= 1e6 &&
                        ms->get<double>() >= 0 && ms->get<double>() <= kMostMs;
      if (!good) throw Error(fmt::format("{}: a 'step' has no good rows and median", path));
      curve.emplace_back(static_cast<int32_t>(rows->get<double>()), ms->get<double>());
    }
  }
  std::sort(curve.begin(), curve.end());
  if (curve.empty())
    throw Error(fmt::format("{} is no curve: it has no series 'step' in ms by rows", path));
  for (size_t i = 1; i < curve.size(); ++i) {
    if (curve[i].first == curve[i - 1].first)
      throw Error(fmt::format("{} has two curves: {} rows twice", path, curve[i].first));
  }
  return curve;
}

void set_key(std::string_view key, std::string_view value, SimulatedSpec* spec) {
  const auto number = [&](double most) { return number_of<double>(key, value, 0.0, most); };
  const auto integer = [&](int32_t least, int32_t most) {
    return number_of<int32_t>(key, value, least, most);
  };
  if (key == "step_ms") {
    spec->step_ms = list_of(key, value, 0, kMostMs);
  } else if (key == "curve") {
    spec->curve = read_curve(std::string(value));
  } else if (key == "row_ms") {
    spec->row_ms = list_of(key, value, 0, kMostMs);
  } else if (key == "context_us") {
    spec->context_us = number(kMostMs);
  } else if (key == "kv_us") {
    spec->kv_us = number(kMostMs);
  } else if (key == "link_us") {
    spec->link_us = number(kMostMs);
  } else if (key == "layers") {
    spec->layers = integer(1, 10000);
  } else if (key == "jitter") {
    spec->jitter = number(1);
  } else if (key == "alpha") {
    spec->alpha = alphas_of(value);
  } else if (key == "seed") {
    spec->seed = number_of<uint64_t>(key, value, 0, UINT64_MAX);
  } else if (key == "vocab") {
    spec->vocab = integer(kEndSimulatedWords, kMaxVocabSize);
  } else if (key == "max_len") {
    spec->max_len = integer(16, 1 << 20);
  } else if (key == "workload_classes") {
    spec->workload_classes = integer(1, kMaxWorkloadClasses);
  } else if (key == "repeat") {
    spec->repeat = number(1);
  } else {
    throw Error(
        fmt::format("simulated model: there is no key '{}'; there are step_ms, curve, row_ms, "
                    "context_us, kv_us, link_us, layers, jitter, alpha, seed, vocab, max_len, "
                    "workload_classes and repeat",
                    printable(std::string(key.substr(0, 100)))));
  }
}

void apply_preset(std::string_view name, SimulatedSpec* spec) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return apply(preset, spec);
  }
  throw Error(fmt::format("simulated model: '{}' is neither key=value nor a preset; presets are {}",
                          printable(std::string(name.substr(0, 100))),
                          fmt::join(kPresets | std::views::transform(&Preset::name), ", ")));
}

void check_whole(const SimulatedSpec& spec, const std::set<std::string_view>& given) {
  const auto check_list = [&](const char* key, const std::vector<double>& values) {
    if (values.size() <= 1 || values.size() == static_cast<size_t>(spec.workload_classes)) return;
    throw Error(fmt::format("simulated model: {} has {} values where there are {} workload_classes",
                            key,
                            values.size(),
                            spec.workload_classes));
  };
  if (!spec.curve.empty() && given.contains("step_ms"))
    throw Error("simulated model: give step_ms or curve, not both");
  if (spec.step_ms.empty() && spec.curve.empty())
    throw Error("simulated model: it needs step_ms, curve or a preset");
  check_list("step_ms", spec.step_ms);
  check_list("row_ms", spec.row_ms);
  check_list("alpha", spec.alpha);
}

// Linear between the measured row counts, and on with the last slope, which never falls.
double curve_ms(const std::vector<std::pair<int32_t, double>>& curve, double rows) {
  if (curve.size() == 1 || rows <= curve.front().first) return curve.front().second;
  size_t i = 1;
  while (i + 1 < curve.size() && rows > curve[i].first) ++i;
  const auto [first_rows, first_ms] = curve[i - 1];
  const auto [last_rows, last_ms] = curve[i];
  double slope = (last_ms - first_ms) / (last_rows - first_rows);
  if (rows > last_rows) slope = std::max(0.0, slope);
  return rows > last_rows ? last_ms + slope * (rows - last_rows)
                          : first_ms + slope * (rows - first_rows);
}

}  // namespace

bool is_simulated(std::string_view name) { return name.starts_with(kPrefix); }

SimulatedSpec parse_simulated(std::string_view name) {
  OUTRIDER_CHECK(is_simulated(name));
  SimulatedSpec spec;
  std::set<std::string_view> given;
  const std::vector<std::string_view> parts = cut(name.substr(kPrefix.size()), ',');
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t sign = parts[i].find('=');
    if (sign == std::string_view::npos && i == 0) {
      apply_preset(parts[i], &spec);
      continue;
    }
    const std::string_view key = parts[i].substr(0, sign);
    if (sign == std::string_view::npos)
      throw Error(fmt::format("simulated model: '{}' is not key=value",
                              printable(std::string(key.substr(0, 100)))));
    if (!given.insert(key).second)
      throw Error(fmt::format("simulated model: {} is given twice",
                              printable(std::string(key.substr(0, 100)))));
    set_key(key, parts[i].substr(sign + 1), &spec);
  }
  check_whole(spec, given);
  return spec;
}

ModelConfig simulated_config(const SimulatedSpec& spec) {
  ModelConfig config;
  config.model_type = "simulated";
  config.n_layers = 1;
  config.hidden_dim = 128;
  config.n_heads = 64;
  config.n_kv_heads = 8;
  config.head_dim = 2;
  config.ffn_dim = 512;
  config.vocab_size = spec.vocab;
  config.max_positions = spec.max_len;
  return config;
}

double simulated_step_ms(const SimulatedSpec& spec, const Batch& batch) {
  const SimulatedLaw law{spec.seed, spec.workload_classes};
  const auto workload_class_of = [&](int32_t token) {
    return static_cast<size_t>(law.workload_class_of(token));
  };
  double cost = 0;
  if (!spec.curve.empty()) {
    cost = curve_ms(spec.curve, static_cast<double>(batch.tokens.size()));
  } else if (spec.step_ms.size() == 1) {
    cost = spec.step_ms[0];
  } else {
    for (const int32_t token : batch.tokens)
      cost = std::max(cost, spec.step_ms[workload_class_of(token)]);
  }
  double row_context = 0;
  double sequence_context = 0;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    cost += spec.row_ms[spec.row_ms.size() == 1 ? 0 : workload_class_of(batch.tokens[i])];
    row_context += batch.positions[i];
    const bool is_last =
        i + 1 == batch.tokens.size() || batch.sequence_of_row[i + 1] != batch.sequence_of_row[i];
    if (is_last) sequence_context += batch.positions[i];
  }
  return cost + spec.context_us * row_context * 1e-6 + spec.kv_us * sequence_context * 1e-6 +
         spec.link_us * 1e-3 * (2 * spec.layers + 1);
}

double jittered_ms(const SimulatedSpec& spec, double cost_ms, uint64_t step) {
  const auto bits = static_cast<uint32_t>(mix_seed(spec.seed, step) >> 32);
  return cost_ms * (1 + spec.jitter * (2 * uniform_from_bits(bits) - 1));
}

}  // namespace outrider
