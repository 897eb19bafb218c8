// Writing files that are whole or not there: bytes go to a temporary name beside the target and
// take its name once they are on disk. Used by whatever writes weights and model folders; one
// thread at a time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace outrider {

class NewFile {
 public:
  // Begins PATH.partial-PID; throws Error naming it when that cannot be made. mode: what may be
  // allowed to whom, before the umask.
  explicit NewFile(const std::filesystem::path& path, unsigned mode = 0666);
  // Without finish() nothing is left.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Throws Error (disk full, ...).
  void append(const void* data, size_t num_bytes);
  void append(std::string_view text) { append(text.data(), text.size()); }

  // Waits for the disk, then gives the file its name, replacing one of that name.
  void finish();

 private:
  std::string name_;
  std::string partial_name_;
  int descriptor_ = -1;
};

// A small file in one piece.
void write_new_file(const std::filesystem::path& path, std::string_view text);

}  // namespace outrider
