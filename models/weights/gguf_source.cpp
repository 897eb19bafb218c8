// The tensors of a GGUF file under the names, and in the order of rows, that a Hugging Face folder
// has them. Blocks of integers go to the products as they are. Used at load time on every rank.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint_plan.h"
#include "models/checkpoint/safetensors.h"
#include "models/gguf/gguf_documents.h"
#include "models/weights/gguf_names.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr int64_t kMostLaterLayers = 16;

class GgufSource final : public TensorSource {
 public:
  GgufSource(const std::filesystem::path& path, const ModelConfig& config)
      : file_(path), config_(config) {
    refuse_unused();
  }

  ops::DType expect(const std::string& name, const std::vector<int64_t>& shape) const override {
    const Found found = find(name);
    for (size_t i = 0; i < found.tensors.size(); ++i) check_shape(found, i, shape);
    const uint32_t type = found.tensors[0]->type->id;
    const bool are_alike = found.tensors.back()->type->id == type;
    if (!are_alike && (is_16_bits(type) || is_16_bits(found.tensors.back()->type->id)))
      throw Error(fmt::format("{}: tensors '{}' and '{}' differ in type",
                              file_.name(),
                              found.view.tensors[0],
                              found.view.tensors[1]));
    if (type == kGgufF16) return ops::DType::kF16;
    if (type == kGgufBF16) return ops::DType::kBF16;
    return ops::DType::kF32;
  }

  void read(const TensorPart& part, std::byte* out) const override {
    const Found found = find(part.name);
    if (found.view.is_vector) return read_vector(found, part, out);
    if (found.view.is_turned_over) return read_kv_b(found, part, out);
    for (int64_t row = part.rows.begin; row < part.rows.end; ++row) {
      const auto [which, file_row] = place(found, part.name, row);
      out = read_row(*found.tensors[which], file_row, part.columns, out);
    }
  }

  std::optional<ops::QuantFormat> integer_format(const Projection& projection) const override {
    std::optional<ops::QuantFormat> format;
    for (const std::string& name : names_.view(projection.name + ".weight").tensors) {
      const auto tensor = file_.tensors().find(name);
      if (tensor == file_.tensors().end() || tensor->second.type->unpack == nullptr)
        return std::nullopt;
      if (format && tensor->second.type->format != *format) return std::nullopt;
      format = tensor->second.type->format;
    }
    return format;
  }
  bool widens_integers() const override { return true; }

  void read_integers(const TensorPart& part,
                     int64_t first_row,
                     ops::PackedMatrix& to) const override {
    const Found found = find(part.name);
    for (int64_t row = part.rows.begin; row < part.rows.end; ++row, ++first_row) {
      const auto [which, file_row] = place(found, part.name, row);
      const GgufTensor& tensor = *found.tensors[which];
      fill_row(*tensor.type, read_blocks(tensor, file_row, part.columns), first_row, to);
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

  struct Found {
    GgufView view;
    std::vector<const GgufTensor*> tensors;  // of the view
  };

  Found find(const std::string& name) const {
    Found found{names_.view(name), {}};
    for (const std::string& own : found.view.tensors) {
      const auto tensor = file_.tensors().find(own);
      if (tensor == file_.tensors().end())
        throw Error(fmt::format("{}: tensor '{}' is missing", file_.name(), own));
      found.tensors.push_back(&tensor->second);
    }
    return found;
  }

  static bool is_16_bits(uint32_t type) { return type == kGgufF16 || type == kGgufBF16; }

  // shape: the folder's, which has experts apart or one below the other.
  std::vector<int64_t> shape_in_file(const GgufView& view,
                                     size_t which,
                                     std::vector<int64_t> shape) const {
    if (view.is_turned_over) {
      const LatentConfig& latent = config_.latent;
      if (which == 0) return {config_.n_heads, latent.kv_rank, latent.nope_dim};
      return {config_.n_heads, latent.value_dim, latent.kv_rank};
    }
    if (view.count > 0 && view.index >= 0) shape.insert(shape.begin(), view.count);
    if (view.count == 0 || view.index >= 0) return shape;
    const auto parts = static_cast<int64_t>(view.tensors.size());
    if (view.is_vector) return {view.count, shape[1] / parts};
    return {view.count, shape[0] / view.count / parts, shape[1]};
  }

  void check_shape(const Found& found, size_t which, const std::vector<int64_t>& asked) const {
    const GgufView& view = found.view;
    const GgufTensor& tensor = *found.tensors[which];
    const std::vector<int64_t> shape = shape_in_file(view, which, asked);
    std::vector<int64_t> own = tensor.shape;
    if (shape[0] == 1 && own.size() < shape.size()) own.insert(own.begin(), 1);
    if (own != shape)
      throw Error(fmt::format("{}: tensor '{}' has shape {} but the metadata asks for {}",
                              file_.name(),
                              view.tensors[which],
                              shape_text(tensor.shape),
                              shape_text(shape)));
    if (view.is_vector && tensor.type->block_values != 1)
      throw Error(fmt::format("{}: tensor '{}' is a vector of type {}, which is not supported",
                              file_.name(),
                              view.tensors[which],
                              tensor.type->name));
  }

  GgufNames::Row place(const Found& found, const std::string& name, int64_t row) const {
    // Of the folder's tensor, where it is one of several.
    const int64_t num_rows = found.view.index >= 0 ? found.tensors[0]->shape[1] : 0;
    return names_.row_in_file(name, found.view, num_rows, row);
  }

  // The row's wanted columns in the tensor's floats; returns what follows them.
  std::byte* read_row(const GgufTensor& tensor, int64_t row, Range columns, std::byte* out) const {
    const GgufType& type = *tensor.type;
    const Blocks blocks = read_blocks(tensor, row, columns);
    if (type.block_values == 1) {
      std::memcpy(out, blocks.bytes.data(), blocks.bytes.size());
      return out + blocks.bytes.size();
    }
    std::vector<float> values(static_cast<size_t>(blocks.count * type.block_values));
    for (int64_t b = 0; b < blocks.count; ++b)
      dequantize(type,
                 blocks.bytes.data() + b * type.block_bytes,
                 &values[static_cast<size_t>(b * type.block_values)]);
    const auto num_bytes = static_cast<size_t>(columns.size()) * sizeof(float);
    std::memcpy(out, values.data() + blocks.columns_before, num_bytes);
    return out + num_bytes;
  }

  // Whole rows of latent attention's kv_b.
  void read_kv_b(const Found& found, const TensorPart& part, std::byte* out) const {
    const LatentConfig& latent = config_.latent;
    const auto rank = static_cast<size_t>(latent.kv_rank);
    const auto nope = static_cast<size_t>(latent.nope_dim);
    const int64_t of_head = latent.nope_dim + latent.value_dim;
    const int64_t type_bytes = found.tensors[0]->type->block_bytes;
    const size_t element =
        found.tensors[0]->type->block_values == 1 ? static_cast<size_t>(type_bytes) : sizeof(float);
    std::vector<std::byte> keys(rank * nope * element);
    int64_t head = -1;
    for (int64_t row = part.rows.begin; row < part.rows.end; ++row) {
      const int64_t in_head = row % of_head;
      if (in_head >= latent.nope_dim) {
        const int64_t value = row / of_head * latent.value_dim + in_head - latent.nope_dim;
        out = read_row(*found.tensors[1], value, part.columns, out);
        continue;
      }
      if (head != row / of_head) {
        head = row / of_head;
        std::byte* to = keys.data();
        for (int64_t r = 0; r < latent.kv_rank; ++r)
          to = read_row(*found.tensors[0], head * latent.kv_rank + r, {0, latent.nope_dim}, to);
      }
      for (size_t r = 0; r < rank; ++r, out += element)
        std::memcpy(out, &keys[(r * nope + static_cast<size_t>(in_head)) * element], element);
    }
  }

  // Its elements are the rows of other tensors; those of biases of all experts lie in lines.
  void read_vector(const Found& found, const TensorPart& part, std::byte* out) const {
    const auto element = static_cast<size_t>(found.tensors[0]->type->block_bytes);
    std::vector<std::vector<std::byte>> all;
    for (const GgufTensor* tensor : found.tensors) {
      all.emplace_back(tensor->num_bytes);
      tensor->file->read_at(tensor->begin, all.back().data(), all.back().size());
    }
    for (int64_t line = part.rows.begin; line < part.rows.end; ++line) {
      for (int64_t i = part.columns.begin; i < part.columns.end; ++i, out += element) {
        const GgufNames::Row row = place(found, part.name, line * part.n_columns + i);
        std::memcpy(out, &all[row.tensor][static_cast<size_t>(row.row) * element], element);
      }
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

  // One row of integers into a matrix of their own format, or of a wider one: which has more bits,
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
    const bool as_they_are = format.bits == 4;  // others are signed
    GgufBlock block{};
    for (int64_t b = 0; b < blocks.count; ++b) {
      type.unpack(blocks.bytes.data() + b * type.block_bytes, &block);
      for (int i = 0; i < type.block_values; ++i)
        values.push_back(as_they_are ? block.values[i]
                                     : static_cast<int8_t>(type.integer(block.values[i])));
      for (int64_t i = 0; i < type.block_values; i += format.group_size) {
        const auto group = static_cast<size_t>(i / type.format.group_size);
        const auto& of_scales = has_supers ? block.steps : block.scales;
        const auto& of_offsets = has_supers ? block.offset_steps : block.offsets;
        // Powers of two less than the smallest normal float are as good as none.
        const bool is_lost = format.scales == ops::QuantScales::kPowers &&
                             of_scales[group] < std::numeric_limits<float>::min();
        scales.push_back(is_lost ? 0.0f : of_scales[group]);
        offsets.push_back(type.format.has_offsets ? of_offsets[group] : 0.0f);
      }
      super_scales.push_back(block.super_scale);
      super_offsets.push_back(type.format.has_offsets ? block.super_offset : 0.0f);
    }
    const int64_t begin = blocks.columns_before;
    const int64_t first_group = begin / format.group_size;
    to.fill_integers(row,
                     1,
                     {.values = values.data() + begin,
                      .scales = scales.data() + first_group,
                      .offsets = offsets.data() + first_group,
                      .supers = {super_scales.data(), super_offsets.data(), 0}});
  }

  // Of a file's tensors all must be used: one that nobody reads may change the numbers.
  void refuse_unused() const {
    std::set<std::string> known(std::begin(kGgufRopeTensors), std::end(kGgufRopeTensors));
    for (const TensorShape& tensor : checkpoint_tensors(config_)) {
      const GgufView view = names_.view(tensor.name);
      known.insert(view.tensors.begin(), view.tensors.end());
    }
    int num_later = 0;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (known.contains(name)) continue;
      if (!is_of_later_layer(name))
        throw Error(fmt::format("{}: tensor '{}' is not supported", file_.name(), name));
      ++num_later;
    }
    if (num_later == 0) return;
    log_info("{}: {} tensors are not loaded: layers from {} on, which predict more tokens (MTP)",
             file_.name(),
             num_later,
             config_.n_layers);
  }

  // Of layers that predict further tokens.
  bool is_of_later_layer(const std::string& name) const {
    const std::string* architecture = file_.find<std::string>("general.architecture");
    if (architecture == nullptr) return false;
    const int64_t* count = file_.find<int64_t>(*architecture + ".nextn_predict_layers");
    for (int64_t i = 0; count != nullptr && i < std::min<int64_t>(*count, kMostLaterLayers); ++i)
      if (name.starts_with(fmt::format("blk.{}.", config_.n_layers + i))) return true;
    return false;
  }

  GgufFile file_;
  ModelConfig config_;
  GgufNames names_{config_};
};

}  // namespace

std::unique_ptr<TensorSource> make_gguf_source(const std::filesystem::path& file,
                                               const ModelConfig& config) {
  return std::make_unique<GgufSource>(file, config);
}

}  // namespace outrider
