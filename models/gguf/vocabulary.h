// A Hugging Face tokenizer in the words of GGUF: tokens, scores or merges, types, special ids. Used
// by gguf_export; one thread.
#pragma once

#include <filesystem>

#include "models/checkpoint/model_config.h"
#include "models/gguf/writer.h"

namespace outrider {

// Adds the keys tokenizer.ggml.* and the chat template. Two kinds of tokenizer have a name there:
// SentencePiece-style BPE with byte fallback ("llama": the merges become scores), and byte-level
// BPE ("gpt2") whose way to cut words llama.cpp knows. Throws Error for any other.
void add_gguf_vocabulary(const std::filesystem::path& model_dir,
                         const ModelConfig& config,
                         GgufMetadata& metadata);

}  // namespace outrider
