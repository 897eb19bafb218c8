// See file_store.h.
#include "http/batches/file_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "http/wire/access.h"
#include "http/wire/api_error.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/files/json_gate.h"
#include "runtime/base/files/new_file.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxFactsBytes = 64u << 10;
constexpr unsigned kOwnerOnly = 0600;  // requests and answers are nobody else's business

// Throws Error for what is no file's JSON.
StoredFile read_facts(const fs::path& path) {
  const std::string text = read_regular_file(path, kMaxFactsBytes);
  const std::string fault = json_fault(text, {});
  if (!fault.empty()) throw Error(fmt::format("{}: {}", path.string(), fault));
  const Json json = Json::parse(text);
  try {
    return {json.at("id").get<std::string>(),
            json.at("filename").get<std::string>(),
            json.at("purpose").get<std::string>(),
            json.at("created_at").get<int64_t>(),
            json.at("bytes").get<int64_t>()};
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: is not what /v1/files keeps of a file", path.string()));
  }
}

void write_file(const fs::path& path, std::string_view text) {
  NewFile file(path, kOwnerOnly);
  file.append(text);
  file.finish();
}

}  // namespace

std::string file_json(const StoredFile& file) {
  const Json json = {{"id", file.id},
                     {"object", "file"},
                     {"bytes", file.num_bytes},
                     {"created_at", file.created_at},
                     {"expires_at", nullptr},
                     {"filename", file.filename},
                     {"purpose", file.purpose},
                     {"status", "processed"},
                     {"status_details", nullptr}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string new_stored_id(std::string_view prefix) {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
  return fmt::format("{}{:016x}{}", prefix, micros, new_request_id().substr(0, 16));
}

int64_t unix_seconds_now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

FileStore::FileStore(fs::path folder, Limits limits) : folder_(std::move(folder)), limits_(limits) {
  std::error_code error;
  fs::create_directories(folder_ / "files", error);
  if (error) throw Error(fmt::format("{} cannot be made: {}", folder_.string(), error.message()));
  lock_folder();
  load();
}

FileStore::~FileStore() { ::close(lock_descriptor_); }

void FileStore::lock_folder() {
  const fs::path path = folder_ / "lock";
  lock_descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kOwnerOnly);
  if (lock_descriptor_ < 0)
    throw Error(fmt::format("{} cannot be written: {}", path.string(), std::strerror(errno)));
  if (::flock(lock_descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    ::close(lock_descriptor_);
    throw Error(fmt::format("another server keeps its batches in {}", folder_.string()));
  }
  log_warning("{} cannot be locked ({}): no other server may use it meanwhile",
              folder_.string(),
              std::strerror(errno));
}

void FileStore::load() {
  for (const auto& entry : fs::directory_iterator(folder_ / "files")) {
    if (entry.path().extension() != ".json") continue;
    try {
      const StoredFile file = read_facts(entry.path());
      if (file.id != entry.path().stem() || !fs::exists(content_path(file.id)))
        throw Error(fmt::format("{}: its file is not there", entry.path().string()));
      total_bytes_ += file.num_bytes;
      files_.emplace(file.id, file);
    } catch (const Error& error) {
      log_warning("left alone: {}", error.what());
    }
  }
}

void FileStore::sweep(const std::set<std::string>& kept) {
  std::lock_guard lock(mutex_);
  for (const auto& entry : fs::directory_iterator(folder_ / "files")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("file-") || entry.path().extension() == ".json") continue;
    const std::string id = name.substr(0, name.find('.'));
    const bool is_content = entry.path().extension() == ".jsonl";
    if (is_content && (files_.contains(id) || kept.contains(id))) continue;
    std::error_code ignored;
    fs::remove(entry.path(), ignored);
  }
}

fs::path FileStore::content_path(const std::string& id) const {
  return folder_ / "files" / (id + ".jsonl");
}

fs::path FileStore::facts_path(const std::string& id) const {
  return folder_ / "files" / (id + ".json");
}

fs::path FileStore::folder_for(const std::string& name) const {
  fs::create_directories(folder_ / name);
  return folder_ / name;
}

StoredFile FileStore::keep(StoredFile file) {
  write_file(facts_path(file.id), file_json(file));
  StoredFile& place = files_[file.id];  // which a kill may have left behind
  total_bytes_ += file.num_bytes - place.num_bytes;
  return place = std::move(file);
}

void FileStore::check_room(int64_t num_bytes) const {
  std::lock_guard lock(mutex_);
  if (files_.size() < limits_.max_files && num_bytes <= limits_.max_total_bytes - total_bytes_)
    return;
  throw ApiError(400,
                 fmt::format("there is no room for this file: at most {} files of together {} "
                             "bytes are kept, so delete some",
                             limits_.max_files,
                             limits_.max_total_bytes),
                 "file");
}

StoredFile FileStore::add(std::string_view content, std::string filename, std::string purpose) {
  const auto num_bytes = static_cast<int64_t>(content.size());
  check_room(num_bytes);
  StoredFile file{new_stored_id("file-"),
                  std::move(filename),
                  std::move(purpose),
                  unix_seconds_now(),
                  num_bytes};
  write_file(content_path(file.id), content);  // without the lock: it may take a second
  std::lock_guard lock(mutex_);
  return keep(std::move(file));
}

StoredFile FileStore::adopt(const std::string& id, std::string filename, std::string purpose) {
  std::lock_guard lock(mutex_);
  const auto num_bytes = static_cast<int64_t>(fs::file_size(content_path(id)));
  return keep({id, std::move(filename), std::move(purpose), unix_seconds_now(), num_bytes});
}

std::optional<StoredFile> FileStore::find(const std::string& id) const {
  std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  return found == files_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<StoredFile> FileStore::list() const {
  std::lock_guard lock(mutex_);
  std::vector<StoredFile> all;
  for (const auto& [id, file] : files_) all.push_back(file);
  return all;
}

bool FileStore::remove(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  if (found == files_.end()) return false;
  std::error_code ignored;
  fs::remove(facts_path(id), ignored);  // first: content alone is no file
  fs::remove(content_path(id), ignored);
  total_bytes_ -= found->second.num_bytes;
  files_.erase(found);
  return true;
}

}  // namespace outrider
