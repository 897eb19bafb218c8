// A GGUF file: what stands for its configuration, tokenizer and template, and its tensors as
// floats. A model that is taken gives every row of them.
#include "models/checkpoint/checkpoint_plan.h"
#include "models/families/families.h"
#include "models/gguf/gguf_file.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "models/weights/weight_reader.h"
#include "models/weights/weights.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

void read_weights(const std::string& path, const ModelConfig& config) {
  const auto source = make_checkpoint_source(path, config, {0, config.vocab_size});
  for (const TensorShape& tensor : checkpoint_tensors(config)) {
    std::vector<int64_t> shape = tensor.shape;
    if (shape.size() == 3) shape = {shape[0] * shape[1], shape[2]};  // experts
    source->expect(tensor.name, shape);
    const int64_t num_rows = shape.size() == 1 ? 1 : shape.front();
    const int64_t num_columns = shape.back();
    std::vector<std::byte> out(static_cast<size_t>(num_columns) * sizeof(float));
    for (int64_t row = 0; row < num_rows; ++row)
      source->read({tensor.name, num_columns, {row, row + 1}, {0, num_columns}}, out.data());
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  static const fuzz::Folder folder;
  const std::string path = folder.write("m.gguf", fuzz::Input(data, num_bytes).rest());
  if (!fuzz::takes([&] { GgufFile file(path); })) return 0;
  fuzz::takes([&] { ChatTemplate::load(path); });
  fuzz::takes([&] { Tokenizer::load(path)->encode("ab <s>"); });
  fuzz::takes([&] {
    const ModelConfig config = load_model_config(path);
    read_weights(path, config);
    const auto source = make_checkpoint_source(path, config, {0, config.vocab_size});
    build_weights(config, shard_model(config, 0, 1), *source, {}, 1);  // as integers
  });
  return 0;
}
