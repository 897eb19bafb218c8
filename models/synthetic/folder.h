// A synthetic model as a Hugging Face folder. Used by `synth`, on one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "models/synthetic/synthetic.h"

namespace outrider {

// Throws Error when there is something under this name that is not an empty folder.
void check_new_folder(const std::filesystem::path& folder);

// Writes weights, configurations and tokenizer; config.json comes last. The folder is made, and
// must be empty when it is there. config.dtype and the special tokens are the recipe's and the
// tokenizer's, whatever config says. Needs a few MB of memory. progress: bytes done and in all.
// Throws Error when something cannot be written.
void write_synthetic_folder(const std::filesystem::path& folder,
                            ModelConfig config,
                            const SyntheticRecipe& recipe,
                            const std::function<void(uint64_t, uint64_t)>& progress = {});

}  // namespace outrider
