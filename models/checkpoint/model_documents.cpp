// See model_documents.h.
#include "models/checkpoint/model_documents.h"

#include "models/gguf/gguf_documents.h"
#include "runtime/base/files/files.h"

namespace outrider {

std::optional<std::string> read_model_document(const std::filesystem::path& model,
                                               const std::string& name,
                                               size_t max_bytes) {
  if (is_gguf(model)) return gguf_document(GgufFile(model), name);
  std::error_code ignored;
  if (!std::filesystem::exists(model / name, ignored)) return std::nullopt;
  return read_regular_file(model / name, max_bytes);
}

}  // namespace outrider
