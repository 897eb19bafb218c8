// Runs a fuzz target without libFuzzer: every file of its corpus, then as many mutants of them as
// asked for, always the same ones.
//     TARGET CORPUS_FOLDER NUM_MUTANTS
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::vector<std::string> read_corpus(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Bytes changed, left out, doubled, or taken from another input.
std::string mutant(const std::vector<std::string>& corpus, std::mt19937& random) {
  std::string bytes = corpus[random() % corpus.size()];
  for (size_t edits = random() % 6 + 1; edits > 0; --edits) {
    const size_t at = bytes.empty() ? 0 : random() % bytes.size();
    const size_t length = random() % 16;
    const std::string& other = corpus[random() % corpus.size()];
    switch (random() % 4) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random() % 256);
        break;
      case 1:
        bytes.erase(at, length);
        break;
      case 2:
        bytes.insert(at, bytes.substr(at, length));
        break;
      default:
        if (!other.empty()) bytes.insert(at, other.substr(random() % other.size(), length));
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::vector<std::string> corpus = read_corpus(argv[1]);
  if (corpus.empty()) return 2;
  for (const std::string& bytes : corpus) run(bytes);
  std::mt19937 random(1);
  for (int i = std::atoi(argv[2]); i > 0; --i) run(mutant(corpus, random));
  return 0;
}
