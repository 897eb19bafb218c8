// Looks at what may not be there, without an error. Used where model folders are found and judged.
#pragma once

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

namespace outrider {

inline bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

inline bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// Sorted; none of what is no folder.
inline std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code ignored;
  std::filesystem::directory_iterator entry(folder, ignored);
  for (const std::filesystem::directory_iterator end; entry != end; entry.increment(ignored))
    entries.push_back(entry->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace outrider
