// Reading files that nobody vouches for: sizes known or capped before memory is taken, positioned
// reads into the caller's memory (a file that shrinks is an error, not a SIGBUS). Used by whatever
// opens a model folder or a file that the user names; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace outrider {

// Immutable after construction, so read_at may be called from several threads.
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
  // Asks the system to fetch these bytes from the disk meanwhile.
  void expect_soon(uint64_t offset, size_t num_bytes) const;
  // Asks the system to drop what it keeps of the file in memory, so that the next read is from the
  // disk.
  void forget() const;
  // Throws Error when the file's size or time of writing is not what it was when opened.
  void check_unchanged() const;

 private:
  std::string name_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
  int64_t written_at_ns_ = 0;
};

// Throws Error "NAME: WHAT: what errno says".
[[noreturn]] void fail_with_errno(const std::string& name, const char* what);

// How a Git LFS pointer begins: the few lines that a clone without LFS leaves in place of a file.
constexpr std::string_view kPointerBegin = "version https://git-lfs";
// Throws Error when the file's first bytes are those of a pointer.
void refuse_pointer_file(const std::string& name, std::string_view begin);

// A whole regular file, for the files of a model folder; throws Error when it has more than
// max_bytes, and for a Git LFS pointer.
std::string read_regular_file(const std::filesystem::path& path, size_t max_bytes);

// The same for a file that the user names: a pipe is read to its end.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes);

}  // namespace outrider
