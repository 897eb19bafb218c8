// See result_file.h.
#include "http/batches/result_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "http/api/json_fields.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/files/json_depth.h"
#include "runtime/base/files/new_file.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 66;
constexpr size_t kCopyBytes = 1 << 20;

struct Piece {
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct OldResults {
  std::set<std::string> answered;
  std::vector<Piece> stale;  // lines of failed requests that are asked again, in order
  uint64_t whole_bytes = 0;  // up to the end of the last whole line
  bool is_torn = false;
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(
      fmt::format("{} is not the output of this batch and is left as it is: {}", path, why));
}

// How each line begins: begins_as_result() knows a torn one by it.
std::string line_begin(const std::string& custom_id) {
  return fmt::format("{{\"custom_id\":{},\"error\":", json_quoted(custom_id));
}

std::string line_of(const BatchResult& result) {
  const std::string id = json_quoted("batch-" + result.custom_id);
  return fmt::format(
      "{}{},\"id\":{},\"response\":{{\"body\":{},\"request_id\":{},\"status_code\":{}}}}}\n",
      line_begin(result.custom_id),
      result.error,
      id,
      result.body,
      id,
      result.status);
}

struct ResultLine {
  std::string custom_id;
  bool failed = false;
};

// nullopt for what is no line of a batch's output. An input has custom_ids too, but no response.
std::optional<ResultLine> read_result(const std::string& text) {
  if (json_nests_deeper_than(text, kMaxDepth)) return std::nullopt;
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("response") || !json.contains("error"))
    return std::nullopt;
  const auto id = json.find("custom_id");
  if (id == json.end() || !id->is_string()) return std::nullopt;
  return ResultLine{id->get<std::string>(), !json["error"].is_null()};
}

// Whether the only line of a file, without an end, is the beginning of what would be written for
// one of these ids. What is too short to tell is not.
bool begins_as_result(const std::string& text, const std::set<std::string>& ids) {
  if (text.size() <= line_begin("").find(':') + 2) return false;
  return std::any_of(ids.begin(), ids.end(), [&](const std::string& id) {
    const std::string begin = line_begin(id);
    return text.starts_with(begin) || begin.starts_with(text);
  });
}

OldResults read_old_results(const std::string& path, const std::set<std::string>& ids) {
  OldResults old;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(fmt::format("cannot read {}", path));
  if (file.peek() != '{') refuse(path, "it does not begin with a JSON object");
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    if (file.eof()) {
      const bool is_ours = number > 1 ? text.starts_with('{') : begins_as_result(text, ids);
      if (!is_ours) refuse(path, fmt::format("its last line ({}) has no end", number));
      old.is_torn = true;
      break;
    }
    const std::optional<ResultLine> line = read_result(text);
    if (!line) refuse(path, fmt::format("line {} is no result of a request", number));
    const uint64_t begin = std::exchange(old.whole_bytes, old.whole_bytes + text.size() + 1);
    if (!line->failed) old.answered.insert(line->custom_id);
    if (line->failed && ids.contains(line->custom_id))
      old.stale.push_back({begin, old.whole_bytes});
  }
  return old;
}

void copy_piece(const ReadOnlyFile& from, Piece piece, NewFile* to) {
  std::string buffer;
  while (piece.begin < piece.end) {
    buffer.resize(std::min<uint64_t>(kCopyBytes, piece.end - piece.begin));
    from.read_at(piece.begin, buffer.data(), buffer.size());
    to->append(buffer);
    piece.begin += buffer.size();
  }
}

// A new file takes the old one's name once it is whole, so a kill loses nothing.
void drop_stale_lines(const std::string& path, const OldResults& old) {
  const std::filesystem::path target = std::filesystem::canonical(path);
  const ReadOnlyFile from(target);
  struct stat status {};
  if (::stat(target.c_str(), &status) != 0) throw Error(fmt::format("cannot read {}", path));
  NewFile to(target, status.st_mode & 0777);
  uint64_t begin = 0;
  for (const Piece& piece : old.stale) {
    copy_piece(from, {begin, piece.begin}, &to);
    begin = piece.end;
  }
  copy_piece(from, {begin, old.whole_bytes}, &to);
  to.finish();
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// For appending, and so that no other batch writes to the same file.
int open_locked(const std::string& path) {
  while (true) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) throw Error(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
    struct stat opened {};
    if (::fstat(descriptor, &opened) != 0 || !S_ISREG(opened.st_mode)) return descriptor;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        ::close(descriptor);
        throw Error(fmt::format("another process is writing its results to {}", path));
      }
      log_warning("{} cannot be locked ({}): no other batch may write to it meanwhile",
                  path,
                  std::strerror(errno));
    }
    // Meanwhile another process may have put a new file under this name.
    struct stat named {};
    if (::stat(path.c_str(), &named) == 0 && same_file(opened, named)) return descriptor;
    ::close(descriptor);
  }
}

}  // namespace

void refuse_same_file(const std::string& input, const std::string& output) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(input, none) ||
      !std::filesystem::equivalent(input, output, none))
    return;
  throw Error(
      fmt::format("the results cannot go into the input: {} and {} are one file", input, output));
}

ResultFile::ResultFile(const std::string& path, const std::set<std::string>& ids, bool resume)
    : path_(path), descriptor_(open_locked(path)) {
  try {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) throw Error(fmt::format("cannot read {}", path));
    const bool is_file = S_ISREG(status.st_mode);
    if (resume && !is_file) throw Error(fmt::format("{} cannot be resumed: it is no file", path));
    if (!is_file || status.st_size == 0) return;
    if (!resume) {
      throw Error(fmt::format(
          "{} has something in it: give --resume to keep its results and answer the rest, or "
          "another name",
          path));
    }
    this->resume(ids);
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

void ResultFile::resume(const std::set<std::string>& ids) {
  OldResults old = read_old_results(path_, ids);
  if (!old.stale.empty()) {
    struct stat status {};
    const bool has_mode = ::fstat(descriptor_, &status) == 0;
    drop_stale_lines(path_, old);
    ::close(std::exchange(descriptor_, -1));
    descriptor_ = open_locked(path_);
    if (has_mode) ::fchmod(descriptor_, status.st_mode & 0777);
  } else if (old.is_torn && ::ftruncate(descriptor_, static_cast<off_t>(old.whole_bytes)) != 0) {
    throw Error(fmt::format("the end of {} cannot be cut off: {}", path_, std::strerror(errno)));
  }
  answered_ = std::move(old.answered);
}

ResultFile::~ResultFile() { ::close(descriptor_); }

void ResultFile::append(const BatchResult& result) {
  const std::string line = line_of(result);
  std::lock_guard lock(mutex_);
  if (is_broken_) throw Error(fmt::format("{} cannot be written any more", path_));
  is_broken_ = true;
  write(line);
  if (std::chrono::steady_clock::now() - last_sync_ >= std::chrono::seconds(1)) sync();
  is_broken_ = false;
}

void ResultFile::write(const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t put = ::write(descriptor_, line.data() + done, line.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0)
      throw Error(fmt::format("cannot write the results to {}: {}", path_, std::strerror(errno)));
    done += static_cast<size_t>(put);
  }
}

void ResultFile::finish() {
  std::lock_guard lock(mutex_);
  sync();
}

void ResultFile::sync() {
  last_sync_ = std::chrono::steady_clock::now();
  // EINVAL: a pipe or a device, which has no disk.
  if (::fsync(descriptor_) != 0 && errno != EINVAL)
    throw Error(fmt::format("cannot write the results to {}: {}", path_, std::strerror(errno)));
}

}  // namespace outrider
