// Reads files that nobody vouches for: regular files only, sizes known before memory is taken,
// positioned reads into the caller's memory (a file that shrinks is an error, not a SIGBUS). Used
// by everything that opens a model folder; objects are immutable after construction, so read_at may
// be called from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace outrider {

class ReadOnlyFile {
 public:
  // Throws Error naming the file when it cannot be opened or is not a regular file.
  explicit ReadOnlyFile(const std::filesystem::path& path);
  ~ReadOnlyFile();
  ReadOnlyFile(ReadOnlyFile&& other) noexcept;
  ReadOnlyFile& operator=(ReadOnlyFile&&) = delete;
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::string& name() const { return name_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Fills [out, out + num_bytes) from the given offset; throws Error when the file has fewer bytes.
  void read_at(uint64_t offset, void* out, size_t num_bytes) const;

 private:
  std::string name_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
};

// A name out of a file, for a sentence: cut at 200 bytes, control characters shown as '?'.
std::string printable(const std::string& name);

struct JsonLimits {
  size_t max_bytes = 4u << 20;
  int max_depth = 16;
};

// Throws Error naming origin when the text is not one JSON object, is nested deeper than the limit,
// or names a key twice in one object. The parser is iterative, so no depth harms it; what is built
// from a checked text afterwards may recurse.
void check_json(const std::string& text, const JsonLimits& limits, const std::string& origin);

// A whole JSON file, checked.
std::string read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

}  // namespace outrider
