// Names, order of rows and element types; see export.h.
#include "models/gguf/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "models/checkpoint/checkpoint_plan.h"
#include "models/checkpoint/weight_names.h"
#include "models/forward/rope_frequencies.h"
#include "models/gguf/vocabulary.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

constexpr int64_t kPieceElements = int64_t{2} << 20;
constexpr const char* kRopeFactorsName = "rope_freqs.weight";

// What a file calls a tensor, and where in the checkpoint it comes from.
struct Entry {
  GgufTensor tensor;
  TensorShape source;
  int64_t n_permuted_heads = 0;  // of q and k under "llama"; 0: rows as they are
};

struct NamePair {
  std::string ours;  // within the layer
  const char* theirs;
};

std::string gguf_name(const std::string& name, int32_t n_layers) {
  if (name == kEmbeddingName) return "token_embd.weight";
  if (name == kFinalNormName) return "output_norm.weight";
  if (name == kHeadName) return "output.weight";
  for (int32_t l = 0; l < n_layers; ++l) {
    const LayerNames layer(l);
    if (!name.starts_with(layer.prefix)) continue;
    const NamePair pairs[] = {{layer.attn_norm(), "attn_norm.weight"},
                              {layer.q_norm(), "attn_q_norm.weight"},
                              {layer.k_norm(), "attn_k_norm.weight"},
                              {layer.mlp_norm(), "ffn_norm.weight"},
                              {layer.q(), "attn_q"},
                              {layer.k(), "attn_k"},
                              {layer.v(), "attn_v"},
                              {layer.o(), "attn_output"},
                              {layer.gate(), "ffn_gate"},
                              {layer.up(), "ffn_up"},
                              {layer.down(), "ffn_down"}};
    for (const NamePair& pair : pairs) {
      if (name == pair.ours) return fmt::format("blk.{}.{}", l, pair.theirs);
      for (const char* ending : {".weight", ".bias"}) {
        if (name == pair.ours + ending) return fmt::format("blk.{}.{}{}", l, pair.theirs, ending);
      }
    }
  }
  throw Error(fmt::format("tensor \"{}\" has no name in GGUF", name));
}

std::string architecture_of(const ModelConfig& config) {
  return config.model_type == "mistral" ? "llama" : config.model_type;
}

GgufType type_of(const TensorShape& source, GgufType wanted) {
  if (source.shape.size() == 1) return GgufType::kF32;
  const bool is_cut = source.shape.back() % kQ8BlockSize != 0;
  return wanted == GgufType::kQ8_0 && is_cut ? GgufType::kF16 : wanted;
}

// llama.cpp rotates neighbouring elements of "llama" models, Hugging Face the two halves of a head:
// their rows of q and k are in another order.
int64_t permuted_heads(const std::string& name, const ModelConfig& config) {
  if (architecture_of(config) != "llama") return 0;
  if (name.find(".q_proj.") != std::string::npos) return config.n_heads;
  return name.find(".k_proj.") != std::string::npos ? config.n_kv_heads : 0;
}

std::vector<Entry> entries_of(const ModelConfig& config, GgufType type) {
  std::vector<Entry> entries;
  if (config.rope.scaling == RopeScaling::kLlama3) {
    const int64_t pairs = config.rope.rotary_dim / 2;
    entries.push_back({{kRopeFactorsName, {pairs}, GgufType::kF32}, {kRopeFactorsName, {pairs}}});
  }
  for (TensorShape& source : checkpoint_tensors(config)) {
    GgufTensor tensor{gguf_name(source.name, config.n_layers), source.shape, type_of(source, type)};
    const int64_t heads = permuted_heads(source.name, config);
    entries.push_back({std::move(tensor), std::move(source), heads});
  }
  return entries;
}

uint32_t file_type_of(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return 0;
    case GgufType::kF16:
      return 1;
    case GgufType::kQ8_0:
      return 7;
    case GgufType::kBF16:
      return 32;
  }
  return 0;
}

void add_rope(const ModelConfig& config, const std::string& prefix, GgufMetadata& metadata) {
  const RopeConfig& rope = config.rope;
  metadata.add(prefix + "rope.dimension_count", static_cast<uint32_t>(rope.rotary_dim));
  metadata.add(prefix + "rope.freq_base", static_cast<float>(rope.theta));
  if (rope.scaling == RopeScaling::kLinear) {
    metadata.add(prefix + "rope.scaling.type", "linear");
    metadata.add(prefix + "rope.scaling.factor", static_cast<float>(rope.factor));
  }
  if (rope.scaling == RopeScaling::kYarn) {
    const double usual = rope.factor <= 1.0 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0;
    if (!rope.yarn_truncate || std::abs(rope.attention_factor - usual) > 1e-6) {
      throw Error("this kind of yarn (attention_factor, mscale or truncate) has no form in GGUF");
    }
    metadata.add(prefix + "rope.scaling.type", "yarn");
    metadata.add(prefix + "rope.scaling.factor", static_cast<float>(rope.factor));
    metadata.add(prefix + "rope.scaling.original_context_length",
                 static_cast<uint32_t>(rope.original_max_positions));
    metadata.add(prefix + "rope.scaling.yarn_beta_fast", static_cast<float>(rope.beta_fast));
    metadata.add(prefix + "rope.scaling.yarn_beta_slow", static_cast<float>(rope.beta_slow));
  }
}

GgufMetadata metadata_of(const std::filesystem::path& model_dir,
                         const ModelConfig& config,
                         GgufType type) {
  const std::string architecture = architecture_of(config);
  const std::string prefix = architecture + ".";
  GgufMetadata metadata;
  const auto number = [&](const char* key, int32_t value) {
    metadata.add(prefix + key, static_cast<uint32_t>(value));
  };
  metadata.add("general.architecture", std::string_view(architecture));
  metadata.add("general.type", "model");
  const std::string name = std::filesystem::weakly_canonical(model_dir).filename().string();
  if (!name.empty()) metadata.add("general.name", std::string_view(name));
  metadata.add("general.file_type", file_type_of(type));
  metadata.add("general.quantization_version", uint32_t{2});
  number("vocab_size", config.vocab_size);
  number("context_length", config.max_positions);
  number("embedding_length", config.hidden_dim);
  number("block_count", config.n_layers);
  number("feed_forward_length", config.ffn_dim);
  number("attention.head_count", config.n_heads);
  number("attention.head_count_kv", config.n_kv_heads);
  number("attention.key_length", config.head_dim);
  number("attention.value_length", config.head_dim);
  metadata.add(prefix + "attention.layer_norm_rms_epsilon", config.norm_eps);
  add_rope(config, prefix, metadata);
  add_gguf_vocabulary(model_dir, config, metadata);
  return metadata;
}

// How much slower than plain rope each pair turns.
std::vector<float> rope_factors(const RopeConfig& rope) {
  RopeConfig plain = rope;
  plain.scaling = RopeScaling::kNone;
  const std::vector<float> freqs = rope_frequencies(plain);
  const double positions = rope.original_max_positions;
  std::vector<float> factors;
  for (const float freq : freqs) {
    const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(freq);
    double factor = 1.0;
    if (wavelength > positions / rope.low_freq_factor) {
      factor = rope.factor;
    } else if (wavelength >= positions / rope.high_freq_factor) {
      const double smooth = (positions / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      factor = 1.0 / ((1.0 - smooth) / rope.factor + smooth);
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

// Row i of a head comes from row i / 2 of its first half, or for odd i of its second.
void permute_rows(const std::byte* from, int64_t head_dim, int64_t row_bytes, std::byte* to) {
  for (int64_t i = 0; i < head_dim; ++i) {
    const int64_t source = i % 2 * (head_dim / 2) + i / 2;
    std::memcpy(to + i * row_bytes, from + source * row_bytes, static_cast<size_t>(row_bytes));
  }
}

std::vector<float> widen(const std::vector<std::byte>& raw, ops::DType dtype) {
  std::vector<float> values(raw.size() / ops::dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == ops::DType::kF32) {
      std::memcpy(&values[i], raw.data() + 4 * i, sizeof(float));
      continue;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, raw.data() + 2 * i, sizeof(bits));
    values[i] = dtype == ops::DType::kBF16 ? ops::bf16_to_float(bits) : ops::f16_to_float(bits);
  }
  return values;
}

[[noreturn]] void fail(const Entry& entry, const std::string& what) {
  throw Error(fmt::format("tensor \"{}\": {}", entry.source.name, what));
}

std::vector<std::byte> to_halves(const Entry& entry, const std::vector<float>& values) {
  const bool is_f16 = entry.tensor.type == GgufType::kF16;
  std::vector<std::byte> out(2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = is_f16 ? ops::float_to_f16(values[i]) : ops::float_to_bf16(values[i]);
    if (is_f16 && (bits & 0x7C00u) == 0x7C00u && std::isfinite(values[i])) {
      fail(entry, fmt::format("{} is too large for f16; bf16 holds it", values[i]));
    }
    std::memcpy(out.data() + 2 * i, &bits, sizeof(bits));
  }
  return out;
}

std::vector<std::byte> converted(const Entry& entry, std::vector<std::byte> raw, ops::DType dtype) {
  const bool is_same = (dtype == ops::DType::kF32 && entry.tensor.type == GgufType::kF32) ||
                       (dtype == ops::DType::kF16 && entry.tensor.type == GgufType::kF16) ||
                       (dtype == ops::DType::kBF16 && entry.tensor.type == GgufType::kBF16);
  if (is_same) return raw;
  const std::vector<float> values = widen(raw, dtype);
  const auto n = static_cast<int64_t>(values.size());
  if (entry.tensor.type == GgufType::kF32) {
    std::vector<std::byte> out(4 * values.size());
    std::memcpy(out.data(), values.data(), out.size());
    return out;
  }
  if (entry.tensor.type != GgufType::kQ8_0) return to_halves(entry, values);
  std::vector<std::byte> out(gguf_bytes(GgufType::kQ8_0, n));
  if (!quantize_q8_0(values.data(), n, out.data())) fail(entry, "holds NaN or infinity");
  return out;
}

class Exporter {
 public:
  Exporter(const ModelConfig& config, const TensorSource& source, GgufWriter& writer)
      : config_(config), source_(source), writer_(writer) {}

  void write(const Entry& entry) {
    if (entry.tensor.name == kRopeFactorsName) {
      const std::vector<float> factors = rope_factors(config_.rope);
      writer_.append(kRopeFactorsName, std::as_bytes(std::span(factors)));
      return;
    }
    const ops::DType dtype = source_.expect(entry.source.name, entry.source.shape);
    // A permuted bias has one element a row.
    const bool has_rows = entry.source.shape.size() == 2 || entry.n_permuted_heads > 0;
    const int64_t n_columns =
        entry.source.shape.size() == 2 || !has_rows ? entry.source.shape.back() : 1;
    const int64_t n_rows = has_rows ? entry.source.shape[0] : 1;
    const int64_t unit = entry.n_permuted_heads > 0 ? config_.head_dim : 1;
    const int64_t rows_at_once = std::max<int64_t>(1, kPieceElements / (n_columns * unit)) * unit;
    for (int64_t row = 0; row < n_rows; row += rows_at_once) {
      const Range rows = {row, std::min(n_rows, row + rows_at_once)};
      std::vector<std::byte> raw = read(entry, dtype, rows, n_columns);
      if (entry.n_permuted_heads > 0) raw = permuted(raw, rows.size());
      writer_.append(entry.tensor.name, converted(entry, std::move(raw), dtype));
    }
  }

 private:
  std::vector<std::byte> read(const Entry& entry, ops::DType dtype, Range rows, int64_t n_columns) {
    std::vector<std::byte> raw(static_cast<size_t>(rows.size() * n_columns) *
                               ops::dtype_bytes(dtype));
    TensorPart part{entry.source.name, n_columns, rows, {0, n_columns}};
    if (entry.source.shape.size() == 1) {
      const Range columns = n_columns == 1 ? rows : Range{0, n_columns};
      part = {entry.source.name, entry.source.shape[0], {0, 1}, columns};
    }
    source_.read(part, raw.data());
    return raw;
  }

  std::vector<std::byte> permuted(const std::vector<std::byte>& raw, int64_t n_rows) const {
    std::vector<std::byte> out(raw.size());
    const int64_t row_bytes = static_cast<int64_t>(raw.size()) / n_rows;
    const int64_t head_bytes = row_bytes * config_.head_dim;
    for (int64_t at = 0; at < static_cast<int64_t>(raw.size()); at += head_bytes) {
      permute_rows(raw.data() + at, config_.head_dim, row_bytes, out.data() + at);
    }
    return out;
  }

  const ModelConfig& config_;
  const TensorSource& source_;
  GgufWriter& writer_;
};

}  // namespace

bool quantize_q8_0(const float* values, int64_t n, std::byte* out) {
  OUTRIDER_CHECK(n % kQ8BlockSize == 0);
  for (int64_t begin = 0; begin < n; begin += kQ8BlockSize) {
    float most = 0.0f;
    for (int64_t i = 0; i < kQ8BlockSize; ++i) {
      if (!std::isfinite(values[begin + i])) return false;
      most = std::max(most, std::abs(values[begin + i]));
    }
    const float scale = most / 127.0f;
    const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    const uint16_t scale_bits = ops::float_to_f16(scale);
    std::memcpy(out, &scale_bits, sizeof(scale_bits));
    out += sizeof(scale_bits);
    for (int64_t i = 0; i < kQ8BlockSize; ++i) {
      // The inverse of a denormal scale is infinite; such a block is zero at any precision.
      const float level = std::isfinite(inverse) ? std::round(values[begin + i] * inverse) : 0.0f;
      *out++ = static_cast<std::byte>(static_cast<int8_t>(level));
    }
  }
  return true;
}

void export_gguf(const std::filesystem::path& model_dir,
                 const std::filesystem::path& path,
                 GgufType type,
                 const std::function<void(uint64_t, uint64_t)>& progress) {
  const ModelConfig config = load_model_config(model_dir);
  if (config.sliding_window > 0 && config.sliding_window < config.max_positions) {
    log_warning("GGUF has no sliding window for {}: texts differ beyond {} positions",
                config.model_type,
                config.sliding_window);
  }
  const std::unique_ptr<TensorSource> source = make_checkpoint_source(model_dir, config);
  const std::vector<Entry> entries = entries_of(config, type);
  std::vector<GgufTensor> tensors;
  uint64_t num_bytes = 0;
  for (const Entry& entry : entries) {
    tensors.push_back(entry.tensor);
    num_bytes += entry.tensor.num_bytes();
  }
  GgufWriter writer(path, metadata_of(model_dir, config, type), tensors);
  Exporter exporter(config, *source, writer);
  uint64_t num_done = 0;
  for (const Entry& entry : entries) {
    exporter.write(entry);
    num_done += entry.tensor.num_bytes();
    if (progress) progress(num_done, num_bytes);
  }
  writer.finish();
}

}  // namespace outrider
