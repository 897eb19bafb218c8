// What people give in place of a Hugging Face model folder, told by what lies there, and the one
// command that mends it. Asked only when something is missing; any thread.
#pragma once

#include <filesystem>
#include <string>

namespace outrider {

// The folder or GGUF file itself; of a name of the Hub ("ORG/NAME", "ORG/NAME@REVISION") that is no
// folder, and of a Hugging Face cache folder (models--ORG--NAME), the snapshot (hub_cache.h).
// Throws Error for anything else.
std::filesystem::path find_model_folder(const std::string& name);

// Each throws Error: the folder lacks config.json, weights, tokenizer.json.
[[noreturn]] void refuse_without_config(const std::filesystem::path& folder);
[[noreturn]] void refuse_without_weights(const std::filesystem::path& folder);
[[noreturn]] void refuse_missing_shard(const std::filesystem::path& folder,
                                       const std::string& file);
[[noreturn]] void refuse_without_tokenizer(const std::filesystem::path& folder);

}  // namespace outrider
