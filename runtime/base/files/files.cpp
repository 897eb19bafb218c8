// See files.h.
#include "runtime/base/files/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;

struct OpenDescriptor {
  int number;
  ~OpenDescriptor() { ::close(number); }
};

int64_t written_at_ns(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace

void fail_with_errno(const std::string& name, const char* what) {
  throw Error(fmt::format("{}: {}: {}", name, what, std::strerror(errno)));
}

ReadOnlyFile::ReadOnlyFile(const std::filesystem::path& path) : name_(path.string()) {
  // O_NONBLOCK: a FIFO in the folder must be refused, not waited for.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_with_errno(name_, "cannot be opened");
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw Error(fmt::format("{}: is not a regular file", name_));
  }
  size_bytes_ = static_cast<uint64_t>(status.st_size);
  written_at_ns_ = written_at_ns(status);
}

ReadOnlyFile::~ReadOnlyFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ReadOnlyFile::ReadOnlyFile(ReadOnlyFile&& other) noexcept
    : name_(std::move(other.name_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_),
      written_at_ns_(other.written_at_ns_) {}

void ReadOnlyFile::expect_soon(uint64_t offset, size_t num_bytes) const {
  // A file system that does not know the hint reads all the same.
  posix_fadvise(
      descriptor_, static_cast<off_t>(offset), static_cast<off_t>(num_bytes), POSIX_FADV_WILLNEED);
}

void ReadOnlyFile::forget() const { posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

void ReadOnlyFile::check_unchanged() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0 || static_cast<uint64_t>(status.st_size) != size_bytes_ ||
      written_at_ns(status) != written_at_ns_) {
    throw Error(fmt::format("{}: was changed while it was read", name_));
  }
}

void ReadOnlyFile::read_at(uint64_t offset, void* out, size_t num_bytes) const {
  auto* to = static_cast<char*>(out);
  size_t done = 0;
  while (done < num_bytes) {
    const ssize_t got =
        ::pread(descriptor_, to + done, num_bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(name_, "read failed");
    if (got == 0) {
      throw Error(
          fmt::format("{}: ends before byte {}; the file is truncated", name_, offset + num_bytes));
    }
    done += static_cast<size_t>(got);
  }
}

void refuse_pointer_file(const std::string& name, std::string_view begin) {
  if (!begin.starts_with(kPointerBegin)) return;
  throw Error(fmt::format(
      "{}: is a Git LFS pointer, not the file itself: run 'git lfs pull' in its folder", name));
}

std::string read_regular_file(const std::filesystem::path& path, size_t max_bytes) {
  const ReadOnlyFile file(path);
  if (file.size_bytes() > max_bytes) {
    throw Error(fmt::format("{}: larger than {} bytes", file.name(), max_bytes));
  }
  std::string text(file.size_bytes(), '\0');
  file.read_at(0, text.data(), text.size());
  refuse_pointer_file(file.name(), text);
  return text;
}

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const std::string name = path.string();
  const OpenDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) fail_with_errno(name, "cannot be opened");
  std::string text;
  for (;;) {
    const size_t done = text.size();
    text.resize(done + kPieceBytes);
    const ssize_t got = ::read(file.number, text.data() + done, kPieceBytes);
    if (got < 0 && errno != EINTR) fail_with_errno(name, "cannot be read");
    text.resize(done + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return text;
    if (text.size() > max_bytes) {
      throw Error(fmt::format("{}: larger than {} bytes", name, max_bytes));
    }
  }
}

}  // namespace outrider
