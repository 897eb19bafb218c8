// See quantized_folder.h. config.json is written last: a folder without it is not whole.
#include "models/weights/quantized_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/checkpoint/checked_json.h"
#include "models/checkpoint/checkpoint_plan.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/weight_names.h"
#include "models/families/families.h"
#include "models/gguf/gguf_file.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/files/new_file.h"
#include "runtime/ops/half.h"
#include "runtime/ops/quantized.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kBufferBytes = 4 << 20;
constexpr size_t kMaxCopiedBytes = 256u << 20;

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  return std::any_of(
      ends.begin(), ends.end(), [&](const char* end) { return name.ends_with(end); });
}

// One tensor of the model and what becomes of it.
struct Job {
  std::string source;          // tensor it is read from
  std::string name;            // of the projection, without ".weight", or of a copied tensor
  std::vector<int64_t> shape;  // quantised: of a matrix, experts in one tensor below each other
  int64_t rows_at_once = 0;    // no read crosses a multiple of these
  ops::DType dtype = ops::DType::kF32;
  bool quantized = false;
};

class FolderWriter {
 public:
  FolderWriter(const ModelConfig& config,
               const TensorSource& source,
               const QuantizeOptions& options)
      : config_(config), source_(source), options_(options) {}

  void write(const std::filesystem::path& output,
             const std::function<void(uint64_t, uint64_t)>& progress);

 private:
  void find_jobs();
  std::vector<PlannedTensor> plan() const;
  int64_t group_size(const Job& job) const {
    return options_.group_size == 0 ? job.shape[1] : options_.group_size;
  }
  int64_t num_groups(const Job& job) const {
    return (job.shape[1] + group_size(job) - 1) / group_size(job);
  }
  // Calls use(first row, rows, bytes) for runs of the tensor's rows.
  template <typename Use>
  void for_row_runs(const Job& job, const Use& use) const;
  void copy(const Job& job, CheckpointWriter& writer) const;
  void quantize(const Job& job, CheckpointWriter& writer) const;
  void append_scales(const Job& job,
                     const std::vector<float>& scales,
                     CheckpointWriter& writer) const;

  const ModelConfig& config_;
  const TensorSource& source_;
  const QuantizeOptions& options_;
  std::vector<Job> jobs_;
};

// Matrices of layers that stay as they are: routers, for a small error changes who is chosen, and
// what the loader wants in floats.
std::vector<std::string> float_matrices(const ModelConfig& config) {
  const WeightNames& names = config.names;
  std::vector<std::string> all;
  if (config.experts.count > 0) all = {names.router, names.shared_gate};
  if (config.is_latent()) all.push_back(names.kv_b);
  return all;
}

// A matrix of a layer, or those of all its experts.
bool is_projection(const ModelConfig& config, const TensorShape& tensor) {
  const auto is_it = [&](const std::string& name) {
    return tensor.name.ends_with("." + name + ".weight");
  };
  const WeightNames& names = config.names;
  const std::vector<std::string> floats = float_matrices(config);
  const bool is_inside = tensor.name.starts_with(names.layers) ||
                         tensor.name == names.per_layer_model_projection + ".weight";
  return is_inside && tensor.shape.size() >= 2 && tensor.name.ends_with(".weight") &&
         std::none_of(floats.begin(), floats.end(), is_it);
}

void FolderWriter::find_jobs() {
  const bool quantizes_head = !options_.keep_head;
  const std::string head_name = config_.names.head + ".weight";
  for (const TensorShape& tensor : checkpoint_tensors(config_)) {
    Job job{.source = tensor.name, .name = tensor.name, .shape = tensor.shape};
    job.dtype = source_.expect(tensor.name, tensor.shape);
    job.quantized = is_projection(config_, tensor) || (tensor.name == head_name && quantizes_head);
    job.rows_at_once = tensor.shape.size() < 2 ? 1 : tensor.shape[tensor.shape.size() - 2];
    if (tensor.shape.size() == 3) job.shape = {tensor.shape[0] * tensor.shape[1], tensor.shape[2]};
    jobs_.push_back(std::move(job));
  }
  if (config_.tied_head && quantizes_head) {
    Job head = jobs_.front();
    OUTRIDER_CHECK(head.source == config_.names.embedding + ".weight");
    head.name = head_name;
    head.quantized = true;
    jobs_.push_back(std::move(head));
  }
  for (Job& job : jobs_) {
    if (job.quantized) job.name.resize(job.name.size() - std::string(".weight").size());
  }
}

std::vector<PlannedTensor> FolderWriter::plan() const {
  std::vector<PlannedTensor> planned;
  for (const Job& job : jobs_) {
    if (!job.quantized) {
      planned.push_back({job.name, safetensors_type_name(job.dtype), job.shape});
      continue;
    }
    if (options_.packed) {
      planned.push_back({job.name + ".weight_shape", "I64", {2}});
      const int64_t per = 32 / options_.bits;
      planned.push_back(
          {job.name + ".weight_packed", "I32", {job.shape[0], (job.shape[1] + per - 1) / per}});
    } else {
      planned.push_back({job.name + ".weight", "I8", job.shape});
    }
    planned.push_back({job.name + ".weight_scale",
                       options_.bits == 4 ? "F16" : "F32",
                       {job.shape[0], num_groups(job)}});
  }
  return planned;
}

template <typename Use>
void FolderWriter::for_row_runs(const Job& job, const Use& use) const {
  const bool is_vector = job.shape.size() == 1;
  const int64_t n_rows = is_vector ? 1 : job.shape[0];
  const int64_t n_columns = is_vector ? job.shape[0] : job.shape[1];
  const int64_t row_bytes = n_columns * static_cast<int64_t>(ops::dtype_bytes(job.dtype));
  const int64_t most = job.rows_at_once;
  const int64_t run = std::clamp<int64_t>(kBufferBytes / row_bytes, 1, most);
  std::vector<std::byte> buffer(static_cast<size_t>(run * row_bytes));
  for (int64_t row = 0; row < n_rows;) {
    const Range rows = {row, std::min(row / most * most + most, row + run)};
    row = rows.end;
    source_.read({job.source, n_columns, rows, {0, n_columns}}, buffer.data());
    use(rows,
        std::span<const std::byte>(buffer).first(static_cast<size_t>(rows.size() * row_bytes)));
  }
}

void FolderWriter::copy(const Job& job, CheckpointWriter& writer) const {
  for_row_runs(job,
               [&](Range, std::span<const std::byte> bytes) { writer.append(job.name, bytes); });
}

// Two integers of 4 bits to a byte, the first in the low half.
void pack_nibbles(std::vector<uint8_t>& integers) {
  for (size_t i = 0; i < integers.size(); i += 2) {
    integers[i / 2] = static_cast<uint8_t>(integers[i] | integers[i + 1] << 4);
  }
  integers.resize(integers.size() / 2);
}

void FolderWriter::append_scales(const Job& job,
                                 const std::vector<float>& scales,
                                 CheckpointWriter& writer) const {
  const std::string name = job.name + ".weight_scale";
  if (options_.bits == 8) return writer.append(name, std::as_bytes(std::span(scales)));
  std::vector<uint16_t> halves;
  for (const float scale : scales) halves.push_back(ops::float_to_f16(scale));
  writer.append(name, std::as_bytes(std::span(halves)));
}

void FolderWriter::quantize(const Job& job, CheckpointWriter& writer) const {
  const int64_t n_in = job.shape[1];
  const int64_t per_word = options_.packed ? 32 / options_.bits : 1;
  const int64_t padded = (n_in + per_word - 1) / per_word * per_word;
  const int64_t size = group_size(job);
  if (options_.packed) {
    const int64_t shape[2] = {job.shape[0], n_in};
    writer.append(job.name + ".weight_shape", std::as_bytes(std::span(shape)));
  }
  std::vector<float> scales(static_cast<size_t>(job.shape[0] * num_groups(job)));
  std::vector<uint8_t> integers;
  size_t next_scale = 0;
  for_row_runs(job, [&](Range rows, std::span<const std::byte> bytes) {
    const size_t row_bytes = bytes.size() / static_cast<size_t>(rows.size());
    integers.assign(static_cast<size_t>(rows.size() * padded), 0);
    for (int64_t r = 0; r < rows.size(); ++r) {
      const auto raw = bytes.subspan(static_cast<size_t>(r) * row_bytes, row_bytes);
      const std::vector<float> row = widen(raw, job.dtype);
      uint8_t* out = integers.data() + r * padded;
      for (int64_t begin = 0; begin < n_in; begin += size) {
        const int64_t count = std::min(size, n_in - begin);
        const float* x = row.data() + begin;
        const float scale = options_.bits == 4
                                ? ops::fit_group_4(x, count, out + begin).scale
                                : ops::quantize_group(8, x, count, out + begin).scale;
        if (!std::isfinite(scale)) {
          throw Error(fmt::format("tensor \"{}\": row {} holds NaN or infinity{}",
                                  job.source,
                                  rows.begin + r,
                                  options_.bits == 4 ? " or numbers too large for float16" : ""));
        }
        scales[next_scale++] = scale;
      }
    }
    // quantize_group counts from -128; so do packed words, bytes have a sign.
    if (!options_.packed) {
      for (uint8_t& integer : integers) integer ^= 0x80u;
    }
    if (options_.bits == 4) pack_nibbles(integers);
    writer.append(job.name + (options_.packed ? ".weight_packed" : ".weight"),
                  std::as_bytes(std::span(integers)));
  });
  append_scales(job, scales, writer);
}

void FolderWriter::write(const std::filesystem::path& output,
                         const std::function<void(uint64_t, uint64_t)>& progress) {
  find_jobs();
  const std::vector<PlannedTensor> planned = plan();
  CheckpointWriter writer(output, planned, options_.max_file_bytes);
  uint64_t done = 0;
  size_t next = 0;
  for (const Job& job : jobs_) {
    if (job.quantized) {
      quantize(job, writer);
    } else {
      copy(job, writer);
    }
    const size_t num_tensors = !job.quantized ? 1 : options_.packed ? 3 : 2;
    for (size_t i = 0; i < num_tensors; ++i) done += planned[next++].num_bytes();
    if (progress) progress(done, writer.total_bytes());
  }
  writer.finish();
}

// What Linear modules stay in floats, as compressed-tensors names them.
Json ignored_modules(const ModelConfig& config, const QuantizeOptions& options) {
  Json ignored = Json::array();
  if (options.keep_head) ignored.push_back(config.names.head);
  for (const std::string& name : float_matrices(config)) {
    std::string pattern = "re:.*";
    for (const char c : "." + name) pattern += c == '.' ? "\\." : std::string(1, c);
    ignored.push_back(pattern + "$");
  }
  return ignored;
}

Json quantization_json(const ModelConfig& config, const QuantizeOptions& options) {
  Json weights;
  weights["num_bits"] = options.bits;
  weights["type"] = "int";
  weights["symmetric"] = true;
  weights["strategy"] = options.group_size == 0 ? "channel" : "group";
  weights["group_size"] = options.group_size == 0 ? Json(nullptr) : Json(options.group_size);
  weights["dynamic"] = false;
  weights["observer"] = options.bits == 4 ? "mse" : "minmax";
  // What integer products make of their inputs; packed integers mean weights alone.
  Json inputs = nullptr;
  if (!options.packed) {
    inputs = {{"num_bits", 8},
              {"type", "int"},
              {"symmetric", true},
              {"strategy", "token"},
              {"dynamic", true}};
  }
  Json group;
  group["targets"] = Json::array({"Linear"});
  group["weights"] = std::move(weights);
  group["input_activations"] = std::move(inputs);
  group["output_activations"] = nullptr;
  Json json;
  json["quant_method"] = "compressed-tensors";
  json["format"] = options.packed ? "pack-quantized" : "int-quantized";
  json["quantization_status"] = "compressed";
  json["config_groups"]["group_0"] = std::move(group);
  json["ignore"] = ignored_modules(config, options);
  json["kv_cache_scheme"] = nullptr;
  return json;
}

// config.json as it was, with what changes.
std::string config_text(const std::filesystem::path& model_dir,
                        const ModelConfig& config,
                        const QuantizeOptions& options) {
  Json json = Json::parse(read_json_file(model_dir / "config.json"));
  if (!options.keep_head) json["tie_word_embeddings"] = false;
  json["quantization_config"] = quantization_json(config, options);
  return json.dump(2) + "\n";
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure || !std::filesystem::is_directory(folder)) {
    throw Error(fmt::format("folder {} cannot be made: {}", folder.string(), failure.message()));
  }
  if (!std::filesystem::is_empty(folder)) {
    throw Error(fmt::format("folder {} is not empty", folder.string()));
  }
}

// Tokenizer, templates, licence; not weights in any form, nor what stands beside this folder.
void copy_other_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::vector<std::filesystem::path> names;
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    if (entry.is_regular_file()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  for (const std::filesystem::path& name : names) {
    const bool is_weights = name == "config.json" || name.string().starts_with(".") ||
                            ends_with_any(name.string(),
                                          {".safetensors",
                                           ".safetensors.index.json",
                                           ".bin",
                                           ".bin.index.json",
                                           ".gguf",
                                           ".pth",
                                           ".pt",
                                           ".h5",
                                           ".msgpack",
                                           ".onnx"});
    if (!is_weights) write_new_file(to / name, read_regular_file(from / name, kMaxCopiedBytes));
  }
}

}  // namespace

void quantize_folder(const std::filesystem::path& model_dir,
                     const std::filesystem::path& output,
                     const QuantizeOptions& options,
                     const std::function<void(uint64_t, uint64_t)>& progress) {
  if (is_gguf(model_dir))
    throw Error(model_dir.string() + ": is a GGUF file; give the Hugging Face folder of the model");
  const ModelConfig config = load_model_config(model_dir);
  if (config.is_quantized()) {
    throw Error(fmt::format("{}: is quantised already", (model_dir / "config.json").string()));
  }
  OUTRIDER_CHECK(options.bits == 8 || (options.bits == 4 && options.packed));
  ops::check_quant_format({.bits = options.bits, .group_size = options.group_size});
  const auto source = make_checkpoint_source(model_dir, config, {0, config.vocab_size});
  make_folder(output);
  FolderWriter(config, *source, options).write(output, progress);
  copy_other_files(model_dir, output);
  write_new_file(output / "config.json", config_text(model_dir, config, options));
}

}  // namespace outrider
