// Shared by the tokenizer tests: files, golden folders, hand-made tokenizer.json texts.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace outrider::test {

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::filesystem::path golden_dir() {
  return std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/golden/tokenizer";
}

inline const std::vector<std::string>& golden_kinds() {
  static const std::vector<std::string> kinds = {"gpt2",
                                                 "llama3",
                                                 "qwen2",
                                                 "smollm",
                                                 "prefix_space",
                                                 "unknown_pattern",
                                                 "llama2",
                                                 "metaspace_first",
                                                 "metaspace_always",
                                                 "odd",
                                                 "qwen35",
                                                 "o200k",
                                                 "tekken",
                                                 "kimi",
                                                 "falcon",
                                                 "unigram",
                                                 "unigram_bytes"};
  return kinds;
}

// The folder of real inputs; it need not exist.
inline std::filesystem::path data_dir() {
  if (const char* dir = std::getenv("OUTRIDER_DATA")) return dir;
  return std::filesystem::path(OUTRIDER_SOURCE_DIR) / "../shared/data";
}

}  // namespace outrider::test
