// Reads generation_config.json; see model_config.h.
#include "models/checkpoint/model_config.h"

#include "models/checkpoint/config_fields.h"

namespace outrider {

GenerationDefaults load_generation_defaults(const std::filesystem::path& model_dir) {
  GenerationDefaults defaults;
  const auto document = ConfigFields::read(model_dir, "generation_config.json");
  if (!document) return defaults;
  const ConfigFields& fields = *document;
  const auto number = [&fields](const char* key, double low, double high, float otherwise) {
    return static_cast<float>(fields.number_or(key, low, high, otherwise));
  };
  defaults.temperature = number("temperature", 0.0, 100.0, defaults.temperature);
  defaults.top_p = number("top_p", 0.0, 1.0, defaults.top_p);
  defaults.top_k = fields.integer_or("top_k", {0, 2'000'000}, defaults.top_k);
  defaults.min_p = number("min_p", 0.0, 1.0, defaults.min_p);
  defaults.repetition_penalty =
      number("repetition_penalty", 0.01, 100.0, defaults.repetition_penalty);
  return defaults;
}

}  // namespace outrider
