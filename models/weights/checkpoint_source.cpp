// The tensors of a Hugging Face folder, for the loader (weights.h): floats as they lie or turned
// over, and projections in integers.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/unused_tensors.h"
#include "models/gguf/gguf_file.h"
#include "models/weights/fp8_blocks.h"
#include "models/weights/pieces.h"
#include "models/weights/quantized_tensors.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

// Rows of a file that are turned over at once: a line of the cache in 16 bits.
constexpr int64_t kBlockRows = 32;

// The block's rows of n_out become columns `to` of out, whose rows have n_in.
template <typename Bits>
void turn_over(const std::byte* block, int64_t n_out, Range to, int64_t n_in, std::byte* out) {
  const auto* from = reinterpret_cast<const Bits*>(block);
  auto* into = reinterpret_cast<Bits*>(out) + to.begin;
  for (int64_t row = 0; row < n_out; ++row) {
    for (int64_t i = 0; i < to.size(); ++i) into[row * n_in + i] = from[i * n_out + row];
  }
}

class CheckpointSource : public TensorSource {
 public:
  CheckpointSource(const std::filesystem::path& model_dir, const ModelConfig& config, Range vocab)
      : checkpoint_(model_dir, config.names.embedding + ".weight"),
        quantized_(checkpoint_, config.quantization),
        fp8_(checkpoint_, config.quantization),
        transposed_under_(config.transposed ? config.names.layers : ""),
        experts_transposed_(config.names.experts_transposed) {
    refuse_unused_tensors(checkpoint_, config, vocab);
    log_left_out(checkpoint_, config);
  }

  ops::DType expect(const std::string& name, const std::vector<int64_t>& shape) const override {
    if (const auto projection = quantized_.projection_of(name); projection && shape.size() == 2) {
      return quantized_.float_type({*projection, shape[0], shape[1]});
    }
    if (fp8_.has(name)) return fp8_.expect(name, shape);
    const auto [file, info] = find(name);
    if (info == nullptr) {
      throw Error(fmt::format("{}: tensor \"{}\" is missing; expected in shape {}",
                              checkpoint_.origin(),
                              name,
                              shape_text(shape)));
    }
    std::vector<int64_t> found = info->shape;
    const bool turned = is_transposed(name);
    if (turned) std::swap(found[found.size() - 2], found.back());
    // Experts in one tensor are read as one matrix below the other.
    if (found.size() == 3 && shape.size() == 2) found = {found[0] * found[1], found[2]};
    if (found != shape) {
      throw Error(fmt::format("{}: tensor \"{}\" has shape {} but config.json asks for {}{}",
                              file->name(),
                              name,
                              shape_text(info->shape),
                              shape_text(shape),
                              turned ? " transposed" : ""));
    }
    if (!info->dtype) {
      throw Error(fmt::format("{}: tensor \"{}\" is of type {}; weights must be F32, BF16 or F16",
                              file->name(),
                              name,
                              info->type_name));
    }
    return *info->dtype;
  }

  void read(const TensorPart& part, std::byte* out) const override {
    if (const auto projection = quantized_.projection_of(part.name)) {
      return quantized_.read_floats(*projection, part, out);
    }
    if (fp8_.has(part.name)) return fp8_.read(part, out);
    if (is_transposed(part.name)) return read_transposed(part, out);
    read_as_it_lies(part, out);
  }

  bool lies_by_columns(const std::string& name) const override {
    return !quantized_.projection_of(name) && !fp8_.has(name) && is_transposed(name);
  }

  std::optional<ops::QuantFormat> integer_format(const Projection& projection) const override {
    return quantized_.runnable_format(projection);
  }

  void read_integers(const TensorPart& part,
                     int64_t first_row,
                     ops::PackedMatrix& to) const override {
    quantized_.fill(*quantized_.projection_of(part.name), part, first_row, to);
  }

  void expect_soon(const TensorPart& part) const override {
    const bool is_plain = !quantized_.projection_of(part.name) && !fp8_.has(part.name);
    if (!is_plain || is_transposed(part.name)) return;
    for_each_run(part, [](const Checkpoint::Entry& at, uint64_t offset, size_t num_bytes) {
      at.file->expect_soon(*at.info, offset, num_bytes);
    });
  }

  void check_unchanged() const override { checkpoint_.check_unchanged(); }

 private:
  // Some experts that lie in one tensor have no ".weight".
  Checkpoint::Entry find(const std::string& name) const {
    const Checkpoint::Entry at = checkpoint_.find(name);
    if (at.info != nullptr || !name.ends_with(".weight")) return at;
    return checkpoint_.find(name.substr(0, name.rfind(".weight")));
  }

  bool is_transposed(const std::string& name) const {
    const size_t num_lengths = find(name).info->shape.size();
    if (num_lengths == 3) return experts_transposed_;
    return num_lengths == 2 && !transposed_under_.empty() && name.starts_with(transposed_under_);
  }

  void read_as_it_lies(const TensorPart& part, std::byte* out) const {
    try {
      for_each_run(part, [&](const Checkpoint::Entry& at, uint64_t offset, size_t num_bytes) {
        at.file->read(*at.info, offset, out, num_bytes);
        out += num_bytes;
      });
    } catch (const Error& error) {
      throw Error(fmt::format("{} (tensor \"{}\")", error.what(), part.name));
    }
  }

  // The part's rows, all of one expert, are columns of the file, which are read as blocks and
  // turned over.
  void read_transposed(const TensorPart& part, std::byte* out) const {
    const TensorInfo& info = *find(part.name).info;
    const bool is_f32 = ops::dtype_bytes(*info.dtype) == sizeof(uint32_t);
    const int64_t n_out = info.shape.back();
    const int64_t expert = part.rows.begin / n_out;  // 0 of a single matrix
    OUTRIDER_CHECK(part.rows.end <= (expert + 1) * n_out);
    const Range columns = shifted(part.rows, -expert * n_out);
    const Range rows = shifted(part.columns, expert * part.n_columns);
    std::vector<std::byte> block(static_cast<size_t>(kBlockRows * columns.size()) *
                                 ops::dtype_bytes(*info.dtype));
    for (int64_t row = rows.begin; row < rows.end; row += kBlockRows) {
      const Range of_block = {row, std::min(rows.end, row + kBlockRows)};
      read_as_it_lies({part.name, n_out, of_block, columns}, block.data());
      const Range to = shifted(of_block, -rows.begin);
      if (is_f32) {
        turn_over<uint32_t>(block.data(), columns.size(), to, rows.size(), out);
      } else {
        turn_over<uint16_t>(block.data(), columns.size(), to, rows.size(), out);
      }
    }
  }

  // Calls use(file and tensor, offset, bytes) for each stretch of the file: one for whole rows,
  // else one a row.
  template <typename Use>
  void for_each_run(const TensorPart& part, const Use& use) const {
    const Checkpoint::Entry at = find(part.name);
    OUTRIDER_CHECK(at.info != nullptr && at.info->dtype.has_value());
    const auto element = static_cast<int64_t>(ops::dtype_bytes(*at.info->dtype));
    const bool whole_rows = part.columns.size() == part.n_columns;
    const int64_t num_runs = whole_rows ? std::min<int64_t>(1, part.rows.size()) : part.rows.size();
    const int64_t run_rows = whole_rows ? part.rows.size() : 1;
    for (int64_t run = 0; run < num_runs; ++run) {
      const int64_t begin = (part.rows.begin + run) * part.n_columns + part.columns.begin;
      use(at,
          static_cast<uint64_t>(begin * element),
          static_cast<size_t>(run_rows * part.columns.size() * element));
    }
  }

  Checkpoint checkpoint_;
  QuantizedTensors quantized_;
  Fp8Blocks fp8_;
  std::string transposed_under_;  // the beginning of the names of transposed matrices
  bool experts_transposed_;
};

}  // namespace

std::unique_ptr<TensorSource> make_checkpoint_source(const std::filesystem::path& model_dir,
                                                     const ModelConfig& config,
                                                     Range vocab) {
  if (is_gguf(model_dir)) return make_gguf_source(model_dir, config);
  return std::make_unique<CheckpointSource>(model_dir, config, vocab);
}

}  // namespace outrider
