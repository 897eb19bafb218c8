// The other direction of model_config.h: config.json and generation_config.json of a model that we
// made, in the form that Hugging Face, vLLM and llama.cpp's converter read. Used by `synth`.
#pragma once

#include <string>

#include "models/checkpoint/model_config.h"

namespace outrider {

// Of a llama or qwen3 config whose rope is plain or llama3's; throws Error for anything else.
std::string config_json_of(const ModelConfig& config);
std::string generation_config_json_of(const ModelConfig& config);

}  // namespace outrider
