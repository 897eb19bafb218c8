// The documents that describe a model: files of its folder, or what a GGUF file says in their place.
// Used by the readers of configurations, tokenizers and templates; any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace outrider {

// A document of at most max_bytes, such as "config.json"; nothing when the model has none. model: a
// Hugging Face folder or a GGUF file. Throws Error naming the file and what is wrong.
std::optional<std::string> read_model_document(const std::filesystem::path& model,
                                               const std::string& name,
                                               size_t max_bytes);

}  // namespace outrider
