// The files of /v1/files: a folder of this server alone that outlives it. A file is its content and
// a small JSON beside it, written last, so that one exists whole or not at all. Their names on disk
// are ids made here; nothing of a client gets into a path. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

struct StoredFile {
  std::string id;
  std::string filename;  // as the client called it
  std::string purpose;
  int64_t created_at = 0;  // seconds since 1970
  int64_t num_bytes = 0;
};

// OpenAI's file object.
std::string file_json(const StoredFile& file);

// "file-" or "batch_" and 32 hexadecimal digits: the time, so that ids ascend, and as many random
// bits.
std::string new_stored_id(std::string_view prefix);
int64_t unix_seconds_now();

class FileStore {
 public:
  struct Limits {
    size_t max_files = 10000;
    int64_t max_total_bytes = int64_t{16} << 30;
  };
  // Makes the folder where there is none, takes it for this process and reads what is there. Throws
  // Error when it cannot be written, or when another server has it.
  FileStore(std::filesystem::path folder, Limits limits);
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  // Throws ApiError when there is no room for it.
  StoredFile add(std::string_view content, std::string filename, std::string purpose);
  // Of content that was written to content_path(id), whatever room there is.
  StoredFile adopt(const std::string& id, std::string filename, std::string purpose);
  std::optional<StoredFile> find(const std::string& id) const;
  std::vector<StoredFile> list() const;  // oldest first
  // False when there is none. Whoever reads it may go on.
  bool remove(const std::string& id);

  // Where the content of a file of this store is, or will be.
  std::filesystem::path content_path(const std::string& id) const;
  // For what else is kept beside the files, by this process alone.
  std::filesystem::path folder_for(const std::string& name) const;
  // Removes content that no file has and that is not among `kept`: what a kill has left.
  void sweep(const std::set<std::string>& kept);

 private:
  void lock_folder();
  void load();
  void check_room(int64_t num_bytes) const;
  StoredFile keep(StoredFile file);  // with the lock held
  std::filesystem::path facts_path(const std::string& id) const;

  const std::filesystem::path folder_;
  const Limits limits_;
  int lock_descriptor_ = -1;
  mutable std::mutex mutex_;
  std::map<std::string, StoredFile> files_;
  int64_t total_bytes_ = 0;
};

}  // namespace outrider
