// What tells one model folder from another without loading it, so that ranks can compare theirs
// before they begin. A fingerprint is 16 hexadecimal digits; equal ones mean equal content but for
// chance.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace outrider {

std::string fingerprint_of_text(std::string_view text);

// Of all safetensors of a folder, or of a GGUF file: names, types, shapes and places of the tensors, and the bytes of
// each at its begin, middle and end. Reads some KB a tensor. Throws Error as Checkpoint does.
std::string fingerprint_of_weights(const std::filesystem::path& model_dir);

}  // namespace outrider
