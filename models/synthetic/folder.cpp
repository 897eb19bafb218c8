// See folder.h.
#include "models/synthetic/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "models/checkpoint/checkpoint_plan.h"
#include "models/checkpoint/model_config_writer.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/safetensors_writer.h"
#include "models/synthetic/tokenizer.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"
#include "runtime/base/files/new_file.h"

namespace outrider {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;  // of one thread
constexpr unsigned kMaxThreads = 16;

void make_folder(const std::filesystem::path& folder) {
  check_new_folder(folder);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure || !std::filesystem::is_directory(folder)) {
    throw Error(fmt::format("folder {} cannot be made: {}", folder.string(), failure.message()));
  }
}

// One tensor, a few pieces side by side, written in order.
class TensorWriter {
 public:
  TensorWriter(const TensorSource& source, CheckpointWriter& writer)
      : source_(source), writer_(writer), buffers_(std::clamp(cores(), 1u, kMaxThreads)) {}

  void write(const TensorShape& tensor, int64_t element_bytes) {
    const bool is_vector = tensor.shape.size() == 1;
    const int64_t n_rows = is_vector ? 1 : tensor.shape[0];
    const int64_t n_columns = tensor.shape.back();
    const int64_t rows_at_once = std::max<int64_t>(1, kPieceBytes / (n_columns * element_bytes));
    for (int64_t row = 0; row < n_rows;) {
      size_t num_pieces = 0;
      {
        std::vector<std::jthread> helpers;
        for (; num_pieces < buffers_.size() && row < n_rows; ++num_pieces) {
          const Range rows = {row, std::min(n_rows, row + rows_at_once)};
          std::vector<std::byte>& buffer = buffers_[num_pieces];
          buffer.resize(static_cast<size_t>(rows.size() * n_columns * element_bytes));
          helpers.emplace_back([&tensor, &buffer, rows, n_columns, this] {
            source_.read({tensor.name, n_columns, rows, {0, n_columns}}, buffer.data());
          });
          row = rows.end;
        }
      }
      for (size_t i = 0; i < num_pieces; ++i) writer_.append(tensor.name, buffers_[i]);
    }
  }

 private:
  static unsigned cores() { return std::thread::hardware_concurrency(); }

  const TensorSource& source_;
  CheckpointWriter& writer_;
  std::vector<std::vector<std::byte>> buffers_;
};

void write_weights(const std::filesystem::path& folder,
                   const ModelConfig& config,
                   const SyntheticRecipe& recipe,
                   const std::function<void(uint64_t, uint64_t)>& progress) {
  const std::vector<TensorShape> tensors = checkpoint_tensors(config);
  std::vector<PlannedTensor> plan;
  for (const TensorShape& tensor : tensors) {
    plan.push_back({tensor.name, safetensors_type_name(recipe.dtype), tensor.shape});
  }
  const std::unique_ptr<TensorSource> source = make_synthetic_source(config, recipe);
  CheckpointWriter writer(folder, plan);
  TensorWriter tensor_writer(*source, writer);
  uint64_t num_done = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensor_writer.write(tensors[i], static_cast<int64_t>(ops::dtype_bytes(recipe.dtype)));
    num_done += plan[i].num_bytes();
    if (progress) progress(num_done, writer.total_bytes());
  }
  writer.finish();
}

}  // namespace

void check_new_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) return;
  if (!std::filesystem::is_directory(folder) || !std::filesystem::is_empty(folder)) {
    throw Error(fmt::format("{} is there already and is no empty folder", folder.string()));
  }
}

void write_synthetic_folder(const std::filesystem::path& folder,
                            ModelConfig config,
                            const SyntheticRecipe& recipe,
                            const std::function<void(uint64_t, uint64_t)>& progress) {
  config.dtype = recipe.dtype;
  config.bos_token_id = kSyntheticBosId;
  config.eos_token_ids = {kSyntheticEosId};
  make_folder(folder);
  write_weights(folder, config, recipe, progress);
  const SyntheticTokenizer tokenizer =
      make_synthetic_tokenizer(config.vocab_size, config.max_positions);
  write_new_file(folder / "tokenizer.json", tokenizer.tokenizer_json);
  write_new_file(folder / "tokenizer_config.json", tokenizer.tokenizer_config_json);
  write_new_file(folder / "tokenizer.model", tokenizer.tokenizer_model);
  write_new_file(folder / "generation_config.json", generation_config_json_of(config));
  write_new_file(folder / "config.json", config_json_of(config));
}

}  // namespace outrider
