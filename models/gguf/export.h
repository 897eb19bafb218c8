// A Hugging Face folder as one GGUF file, for running other programs on the same weights. Used by
// `export-gguf`, on one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "models/gguf/writer.h"

namespace outrider {

// Of llama, mistral, qwen2 and qwen3. Matrices become `type`, vectors float32; a matrix whose rows
// are no whole blocks of q8_0 becomes f16, as llama.cpp's converter does. Reads and writes in
// pieces of a few MB. progress: bytes written and in all. Throws Error with one sentence for what
// GGUF cannot say, or a weight that `type` cannot hold.
void export_gguf(const std::filesystem::path& model_dir,
                 const std::filesystem::path& path,
                 GgufType type,
                 const std::function<void(uint64_t, uint64_t)>& progress = {});

// One row or more in blocks; n a multiple of kQ8BlockSize. scale = max |x| / 127 in float, elements
// x / scale rounded half away from zero, as ggml's reference does. False: not all are finite.
bool quantize_q8_0(const float* values, int64_t n, std::byte* out);

}  // namespace outrider
