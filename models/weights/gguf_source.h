// The tensors of a GGUF file under the names, and in the order of rows, that a Hugging Face folder
// has them. Blocks of integers go to the products as they are. Used at load time on every rank.
#pragma once

#include <filesystem>
#include <memory>

#include "models/checkpoint/model_config.h"
#include "models/weights/weights.h"

namespace outrider {

// Throws Error naming the file and a tensor that the config leaves out.
std::unique_ptr<TensorSource> make_gguf_source(const std::filesystem::path& file,
                                               const ModelConfig& config);

}  // namespace outrider
