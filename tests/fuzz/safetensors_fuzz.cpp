// Weight files. The first byte says whether the rest is a model.safetensors, or an index over two
// small files that are always the same. Every tensor that is listed can be read to its last byte.
#include "models/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  return bytes + header + std::string(data_bytes, 'x');
}

// Folder 0: a whole model. Folder 1: a sharded one.
struct Folders {
  fuzz::Folder whole{"whole"}, sharded{"sharded"};
  Folders() {
    sharded.write("a.safetensors",
                  file_of(R"({"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", 8));
    sharded.write("b.safetensors",
                  file_of(R"({"v":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}})", 0));
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  static const Folders folders;
  fuzz::Input input(data, num_bytes);
  const bool is_whole = input.byte() % 2 == 0;
  const fuzz::Folder& folder = is_whole ? folders.whole : folders.sharded;
  folder.write(is_whole ? "model.safetensors" : "model.safetensors.index.json", input.rest());
  fuzz::takes([&] {
    const Checkpoint checkpoint(folder.path());
    for (const auto& [name, file] : checkpoint.files()) {
      for (const auto& [tensor, info] : file.tensors()) {
        FUZZ_CHECK(info.begin <= info.end && info.end <= std::max<size_t>(num_bytes, 128));
        std::string out(info.end - info.begin, '\0');
        file.read(info, 0, out.data(), out.size());
        FUZZ_CHECK(!is_whole || checkpoint.find(tensor).info == &info);
      }
    }
  });
  return 0;
}
