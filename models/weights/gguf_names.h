// Where the tensors of a Hugging Face folder lie in a GGUF file: one table from WeightNames, which
// every family has, to llama.cpp's names, and the order of rows where its converter changed it.
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint/model_config.h"

namespace outrider {

// A folder's tensor in the file. A vector's elements count as rows.
struct GgufView {
  std::vector<std::string> tensors;  // one; or gate and up, which the folder has in one
  // Experts, or heads, that lie in one tensor of the file; 0: it is of none.
  int64_t count = 0;
  // Of those the folder's tensor is this one; -1: it has all of them.
  int64_t index = -1;
  bool is_vector = false;
  // kv_b: of each head keys, as [kv_rank, nope_dim], and values, in two tensors.
  bool is_turned_over = false;
};

class GgufNames {
 public:
  explicit GgufNames(const ModelConfig& config) : config_(config) {}

  // name: one of checkpoint_tensors().
  GgufView view(std::string_view name) const;

  struct Row {
    size_t tensor;  // of view.tensors
    int64_t row;    // from that tensor's beginning
  };
  // Row `row` of the folder's tensor `name`, which has num_rows.
  Row row_in_file(std::string_view name, const GgufView& view, int64_t num_rows, int64_t row) const;

 private:
  bool is_turned(std::string_view name) const;
  std::string file_name(std::string_view rest, GgufView& view) const;
  bool view_expert(std::string_view rest, GgufView& view) const;

  const ModelConfig& config_;
};

}  // namespace outrider
