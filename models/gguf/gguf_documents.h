// The documents of a Hugging Face folder that a GGUF file stands for: config.json,
// generation_config.json, tokenizer.json and tokenizer_config.json, written from its metadata. So
// there is one reader of configurations and one of tokenizers. Any thread.
#pragma once

#include <optional>
#include <string>

#include "models/gguf/gguf_file.h"

namespace outrider {

// Tensors that are read as parts of config.json: what each frequency is divided by, always, or up
// to the original length and beyond it.
inline constexpr const char* kGgufRopeFactors = "rope_freqs.weight";
inline constexpr const char* kGgufRopeShort = "rope_factors_short.weight";
inline constexpr const char* kGgufRopeLong = "rope_factors_long.weight";
inline constexpr const char* kGgufRopeTensors[] = {kGgufRopeFactors, kGgufRopeShort, kGgufRopeLong};

// The document of that name; nothing for a name that GGUF has no counterpart of. Throws Error
// naming the file and the key for what is missing or not supported.
std::optional<std::string> gguf_document(const GgufFile& file, const std::string& name);

std::string gguf_tokenizer_json(const GgufFile& file);
std::string gguf_tokenizer_config_json(const GgufFile& file);

}  // namespace outrider
