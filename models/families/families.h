// The model families that load: a table of readers, each a small file of this folder that maps
// config.json's keys and the checkpoint's names to the switches of ModelConfig. Any thread.
#pragma once

#include <filesystem>
#include <span>

#include "models/checkpoint/config_fields.h"
#include "models/checkpoint/model_config.h"

namespace outrider {

struct Family {
  const char* model_type;  // config.json's
  const char* switches;    // what differs from llama, for docs/reference/models.md
  // Asks `fields` for every key that changes the numbers; others are refused afterwards.
  void (*read)(const ConfigFields& fields, ModelConfig& config);
};

std::span<const Family* const> families();

// Reads config.json (and the end tokens of generation_config.json). Throws Error naming the file,
// the key and what is wrong; an unknown model_type is named with the known ones, and a key that
// would change the numbers and is not honoured is refused.
ModelConfig load_model_config(const std::filesystem::path& model_dir);

}  // namespace outrider
