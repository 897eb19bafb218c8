// See gguf_source.h.
#include "models/weights/gguf_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint/checkpoint_plan.h"
#include "models/checkpoint/safetensors.h"
#include "models/gguf/gguf_documents.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

struct NamePair {
  std::string_view folder;
  std::string_view gguf;
};

constexpr NamePair kNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
};
// After "model.layers.N." and "blk.N.".
constexpr NamePair kLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
};

template <typename Pairs>
std::string_view translated(const Pairs& pairs, std::string_view folder) {
  for (const NamePair& pair : pairs)
    if (pair.folder == folder) return pair.gguf;
  OUTRIDER_CHECK(false);  // a name that weight_names.h has and this table not
}

// "model.layers.3.self_attn.q_proj.weight" as "blk.3.attn_q.weight".
std::string gguf_name(std::string_view name) {
  constexpr std::string_view kLayer = "model.layers.";
  const size_t dot = name.rfind('.');
  const std::string_view kind = name.substr(dot);  // .weight or .bias
  std::string_view stem = name.substr(0, dot);
  if (!stem.starts_with(kLayer)) return fmt::format("{}{}", translated(kNames, stem), kind);
  stem.remove_prefix(kLayer.size());
  const size_t end = stem.find('.');
  return fmt::format(
      "blk.{}.{}{}", stem.substr(0, end), translated(kLayerNames, stem.substr(end + 1)), kind);
}

class GgufSource final : public TensorSource {
 public:
  GgufSource(const std::filesystem::path& path, const ModelConfig& config)
      : file_(path), config_(config) {
    refuse_unused();
  }

  ops::DType expect(const std::string& name, const std::vector<int64_t>& shape) const override {
    const GgufTensor& tensor = find(name);
    if (tensor.shape != shape)
      throw Error(fmt::format("{}: tensor '{}' has shape {} but the metadata asks for {}",
                              file_.name(),
                              gguf_name(name),
                              shape_text(tensor.shape),
                              shape_text(shape)));
    if (shape.size() == 1 && tensor.type->block_values != 1)
      throw Error(fmt::format("{}: tensor '{}' is a vector of type {}, which is not supported",
                              file_.name(),
                              gguf_name(name),
                              tensor.type->name));
    if (tensor.type->id == kGgufF16) return ops::DType::kF16;
    if (tensor.type->id == kGgufBF16) return ops::DType::kBF16;
    return ops::DType::kF32;
  }

  void read(const TensorPart& part, std::byte* out) const override {
    const GgufTensor& tensor = find(part.name);
    if (tensor.shape.size() == 1) return read_vector(tensor, part, out);
    const auto size = static_cast<size_t>(part.columns.size());
    std::vector<float> values;
    for (int64_t row = part.rows.begin; row < part.rows.end; ++row) {
      const Blocks blocks = read_blocks(tensor, row_in_file(part.name, row), part.columns);
      if (tensor.type->block_values == 1) {
        std::memcpy(out, blocks.bytes.data(), blocks.bytes.size());
        out += blocks.bytes.size();
        continue;
      }
      values.resize(static_cast<size_t>(blocks.count * tensor.type->block_values));
      for (int64_t b = 0; b < blocks.count; ++b)
        dequantize(*tensor.type,
                   blocks.bytes.data() + b * tensor.type->block_bytes,
                   &values[static_cast<size_t>(b * tensor.type->block_values)]);
      std::memcpy(out, values.data() + blocks.columns_before, size * sizeof(float));
      out += size * sizeof(float);
    }
  }

  std::optional<ops::QuantFormat> integer_format(const Projection& projection) const override {
    const auto tensor = file_.tensors().find(gguf_name(projection.name + ".weight"));
    if (tensor == file_.tensors().end() || tensor->second.type->unpack == nullptr)
      return std::nullopt;
    return tensor->second.type->format;
  }
  bool widens_integers() const override { return true; }

  void read_integers(const TensorPart& part,
                     int64_t first_row,
                     ops::PackedMatrix& to) const override {
    const GgufTensor& tensor = find(part.name);
    for (int64_t row = part.rows.begin; row < part.rows.end; ++row, ++first_row) {
      const Blocks blocks = read_blocks(tensor, row_in_file(part.name, row), part.columns);
      fill_row(*tensor.type, blocks, first_row, to);
    }
  }

  void check_unchanged() const override { file_.check_unchanged(); }

 private:
  // The blocks of one row that hold the wanted columns.
  struct Blocks {
    std::vector<uint8_t> bytes;
    int64_t count = 0;
    int64_t columns_before = 0;  // of the first block, not wanted
  };

  const GgufTensor& find(const std::string& name) const {
    const std::string own = gguf_name(name);
    const auto found = file_.tensors().find(own);
    if (found == file_.tensors().end())
      throw Error(fmt::format("{}: tensor '{}' is missing", file_.name(), own));
    return found->second;
  }

  void read_vector(const GgufTensor& tensor, const TensorPart& part, std::byte* out) const {
    const auto element = static_cast<size_t>(tensor.type->block_bytes);
    for (int64_t i = part.columns.begin; i < part.columns.end; ++i, out += element) {
      const auto offset = static_cast<uint64_t>(row_in_file(part.name, i)) * element;
      tensor.file->read_at(tensor.begin + offset, out, element);
    }
  }

  Blocks read_blocks(const GgufTensor& tensor, int64_t row, Range columns) const {
    const GgufType& type = *tensor.type;
    const int64_t first = columns.begin / type.block_values;
    const int64_t end = (columns.end + type.block_values - 1) / type.block_values;
    const int64_t per_row = tensor.shape.back() / type.block_values;
    Blocks blocks{
        .bytes = std::vector<uint8_t>(static_cast<size_t>((end - first) * type.block_bytes)),
        .count = end - first,
        .columns_before = columns.begin - first * type.block_values};
    const auto offset = static_cast<uint64_t>((row * per_row + first) * type.block_bytes);
    tensor.file->read_at(tensor.begin + offset, blocks.bytes.data(), blocks.bytes.size());
    return blocks;
  }

  // llama.cpp turns pairs of neighbours where Hugging Face turns halves of a head, and for the
  // architecture "llama" its files have the rows of q and k in that order.
  int64_t row_in_file(std::string_view name, int64_t row) const {
    const bool is_turned =
        name.ends_with("self_attn.q_proj.weight") || name.ends_with("self_attn.k_proj.weight") ||
        name.ends_with("self_attn.q_proj.bias") || name.ends_with("self_attn.k_proj.bias");
    if (config_.model_type != "llama" || !is_turned) return row;
    const int64_t half = config_.head_dim / 2;
    const int64_t in_head = row % config_.head_dim;
    return row - in_head + in_head % half * 2 + in_head / half;
  }

  // One row of integers into a matrix of their own format, or of a wider one: which has 8 bits, or
  // shorter groups, or offsets, because its other rows need them.
  void fill_row(const GgufType& type,
                const Blocks& blocks,
                int64_t row,
                ops::PackedMatrix& to) const {
    const ops::QuantFormat& format = to.quant_format();
    std::vector<int8_t> values;
    std::vector<float> scales;
    std::vector<float> offsets;
    std::vector<float> super_scales;
    std::vector<float> super_offsets;
    const bool has_supers = format.scales == ops::QuantScales::kSuperBlocks;
    const int zero = format.bits == 8 ? type.zero : 0;  // 8 bits are signed
    GgufBlock block{};
    for (int64_t b = 0; b < blocks.count; ++b) {
      type.unpack(blocks.bytes.data() + b * type.block_bytes, &block);
      for (int i = 0; i < type.block_values; ++i)
        values.push_back(static_cast<int8_t>(block.values[i] - zero));
      for (int64_t i = 0; i < type.block_values; i += format.group_size) {
        const auto group = static_cast<size_t>(i / type.format.group_size);
        const auto& of_scales = has_supers ? block.steps : block.scales;
        const auto& of_offsets = has_supers ? block.offset_steps : block.offsets;
        scales.push_back(of_scales[group]);
        offsets.push_back(type.format.has_offsets ? of_offsets[group] : 0.0f);
      }
      super_scales.push_back(block.super_scale);
      super_offsets.push_back(type.format.has_offsets ? block.super_offset : 0.0f);
    }
    const int64_t begin = blocks.columns_before;
    const int64_t first_group = begin / format.group_size;
    const ops::SuperScales supers{super_scales.data(), super_offsets.data(), 0};
    if (format.bits == 8)
      return to.fill_rows_int8(row,
                               1,
                               {.values = values.data() + begin,
                                .scales = scales.data() + first_group,
                                .offsets = offsets.data() + first_group,
                                .supers = supers});
    const std::vector<uint8_t> zeros(scales.size(), static_cast<uint8_t>(type.zero));
    to.fill_rows_int4(row,
                      1,
                      {.values = reinterpret_cast<const uint8_t*>(values.data()) + begin,
                       .scales = scales.data() + first_group,
                       .zeros = zeros.data(),
                       .offsets = offsets.data() + first_group,
                       .supers = supers});
  }

  // Of a file's tensors all must be used: one that nobody reads may change the numbers.
  void refuse_unused() const {
    std::vector<std::string> known = {kGgufRopeFactors};
    for (const TensorShape& tensor : checkpoint_tensors(config_))
      known.push_back(gguf_name(tensor.name));
    for (const auto& [name, tensor] : file_.tensors()) {
      if (std::find(known.begin(), known.end(), name) == known.end())
        throw Error(fmt::format("{}: tensor '{}' is not supported", file_.name(), name));
    }
  }

  GgufFile file_;
  ModelConfig config_;
};

}  // namespace

std::unique_ptr<TensorSource> make_gguf_source(const std::filesystem::path& file,
                                               const ModelConfig& config) {
  return std::make_unique<GgufSource>(file, config);
}

}  // namespace outrider
