// Shared by the model tests: where inputs lie, folders made on the fly, and a greedy decoder of one
// sequence.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models/families/families.h"
#include "models/forward/transformer.h"
#include "models/weights/weights.h"
#include "runtime/comm/group/target_group.h"

namespace outrider::test {

// OUTRIDER_SHARE, as for the program: tests for GPUs are carried to machines that did not build
// them.
inline std::filesystem::path source_dir() {
  const char* share = std::getenv("OUTRIDER_SHARE");
  return share != nullptr ? share : OUTRIDER_SOURCE_DIR;
}

inline std::filesystem::path golden_dir() { return source_dir() / "tests" / "golden" / "models"; }
inline std::filesystem::path embedded_target() {
  return source_dir() / "models" / "embedded" / "target";
}

// The models' folders in one folder.
inline std::vector<std::string> model_names(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The folder of real inputs, when this machine has it.
inline std::optional<std::filesystem::path> data_dir() {
  const char* named = std::getenv("OUTRIDER_DATA");
  const std::filesystem::path dir =
      named != nullptr ? std::filesystem::path(named)
                       : std::filesystem::path(OUTRIDER_SOURCE_DIR) / ".." / "shared" / "data";
  if (!std::filesystem::is_directory(dir)) return std::nullopt;
  return dir;
}

// A folder that goes away with the object.
class TempDir {
 public:
  TempDir() {
    // Not by the process's number, which one that was killed may have had before.
    std::string pattern = (base() / "outrider-models-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no folder " + pattern);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

 private:
  // Memory where there is a folder for it: the fuzz tests write thousands of files.
  static std::filesystem::path base() {
    const bool in_memory = ::access("/dev/shm", W_OK) == 0 && std::getenv("TMPDIR") == nullptr;
    return in_memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
  }

  std::filesystem::path path_;
};

inline std::filesystem::path written(const TempDir& folder, const std::string& gguf_bytes) {
  folder.write("model.gguf", gguf_bytes);
  return folder.path() / "model.gguf";
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Rows of one sequence that stand at positions first, first + 1, ...
inline void append_rows(Batch& batch,
                        std::span<const int32_t> tokens,
                        int32_t first,
                        std::span<const int32_t> blocks) {
  batch.block_tables.push_back(blocks);
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch.tokens.push_back(tokens[i]);
    batch.positions.push_back(first + static_cast<int32_t>(i));
    batch.sequence_of_row.push_back(static_cast<int32_t>(batch.block_tables.size()) - 1);
  }
}

inline int32_t lowest_argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Root of the mean squared difference over that of the reference; NaN when anything is.
inline double relative_rms(std::span<const float> got, std::span<const float> expected) {
  double error = 0.0;
  double scale = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - expected[i];
    error += difference * difference;
    scale += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(error / scale);
}

// log of the sum of exp, in double.
inline double log_mass(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double mass = 0;
  for (const float logit : logits) mass += std::exp(logit - top);
  return top + std::log(mass);
}

inline constexpr TransformerOptions kOptions = {
    .block_size = 16, .num_blocks = 64, .max_rows = 256, .max_logit_rows = 256};

// A whole model on one rank with room for one or a few sequences.
struct LoneModel {
  ModelConfig config;
  ops::Context ctx;
  std::unique_ptr<TargetGroup> group = make_solo_group();
  std::unique_ptr<Transformer> model;

  LoneModel(const std::filesystem::path& dir,
            ops::Isa isa,
            int num_threads = 1,
            TransformerOptions options = kOptions)
      : LoneModel(load_model_config(dir), dir, isa, num_threads, options) {}

  // With a config of the test's own over the folder's weights.
  LoneModel(const ModelConfig& own_config,
            const std::filesystem::path& dir,
            ops::Isa isa,
            int num_threads = 1,
            TransformerOptions options = kOptions)
      : LoneModel(own_config,
                  load_weights(dir, own_config, shard_model(own_config, 0, 1)),
                  isa,
                  num_threads,
                  options) {}

  LoneModel(const ModelConfig& own_config,
            std::shared_ptr<const Weights> weights,
            ops::Isa isa,
            int num_threads = 1,
            TransformerOptions options = kOptions)
      : config(own_config), ctx(num_threads, isa) {
    model = std::make_unique<Transformer>(
        config, std::move(weights), shard_model(config, 0, 1), options, *group, ctx);
  }

  // Logits of every row, [tokens, vocab].
  std::vector<float> run(std::span<const int32_t> tokens,
                         int32_t first,
                         std::span<const int32_t> blocks) {
    Batch batch;
    append_rows(batch, tokens, first, blocks);
    batch.logit_rows.resize(tokens.size());
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    const auto logits = model->forward(batch);
    return {logits.begin(), logits.end()};
  }

  std::vector<int32_t> greedy(std::span<const int32_t> prompt,
                              int count,
                              std::span<const int32_t> blocks) {
    std::vector<int32_t> out;
    std::vector<float> logits = run(prompt, 0, blocks);
    auto position = static_cast<int32_t>(prompt.size());
    while (true) {
      const auto vocab = static_cast<size_t>(config.vocab_size);
      out.push_back(lowest_argmax(std::span<const float>(logits).last(vocab)));
      if (out.size() == static_cast<size_t>(count)) return out;
      logits = run({&out.back(), 1}, position++, blocks);
    }
  }
};

inline std::vector<int32_t> block_ids(int32_t first, int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// Every instruction set this machine can run.
inline std::vector<ops::Isa> available_isas() {
  std::vector<ops::Isa> isas = {ops::Isa::kScalar};
  for (const ops::Isa isa : {ops::Isa::kAvx2, ops::Isa::kAvx512}) {
    if (static_cast<int>(isa) <= static_cast<int>(ops::best_isa())) isas.push_back(isa);
  }
  return isas;
}

}  // namespace outrider::test
