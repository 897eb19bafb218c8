// See new_file.h.
#include "runtime/base/files/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"

namespace outrider {
namespace {

// A rename is on disk when its folder is; a file system that cannot do this does not matter here.
void sync_folder_of(const std::string& name) {
  const auto folder = std::filesystem::path(name).parent_path();
  const int descriptor =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

NewFile::NewFile(const std::filesystem::path& path, unsigned mode)
    : name_(path.string()), partial_name_(fmt::format("{}.partial-{}", name_, ::getpid())) {
  descriptor_ = ::open(partial_name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (descriptor_ < 0) fail_with_errno(partial_name_, "cannot be written");
}

NewFile::~NewFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_name_.c_str());
}

void NewFile::append(const void* data, size_t num_bytes) {
  OUTRIDER_CHECK(descriptor_ >= 0);
  const auto* from = static_cast<const char*>(data);
  size_t done = 0;
  while (done < num_bytes) {
    const ssize_t put = ::write(descriptor_, from + done, num_bytes - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_with_errno(partial_name_, "cannot be written");
    done += static_cast<size_t>(put);
  }
}

void NewFile::finish() {
  OUTRIDER_CHECK(descriptor_ >= 0);
  if (::fsync(descriptor_) != 0) fail_with_errno(partial_name_, "cannot be written");
  if (std::rename(partial_name_.c_str(), name_.c_str()) != 0)
    fail_with_errno(name_, "cannot be written");
  ::close(std::exchange(descriptor_, -1));
  sync_folder_of(name_);
}

void write_new_file(const std::filesystem::path& path, std::string_view text) {
  NewFile file(path);
  file.append(text);
  file.finish();
}

}  // namespace outrider
