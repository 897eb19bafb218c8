// See hub_cache.h.
#include "models/checkpoint/hub_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "models/checkpoint/folder_look.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRefBytes = 1024;
constexpr std::string_view kPrefix = "models--";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t hit = text.find(from); hit != std::string::npos; hit = text.find(from, hit + 1))
    text.replace(hit, from.size(), to);
  return text;
}

// "models--org--name" -> "org/name"
std::string repository_of(const fs::path& model) {
  const std::string folder = model.filename().string();
  return folder.starts_with(kPrefix) ? replaced(folder.substr(kPrefix.size()), "--", "/") : folder;
}

bool is_plain(const std::string& name) {
  return !name.empty() && name[0] != '.' && name[0] != '/' && name.back() != '/' &&
         name.find("..") == std::string::npos && name.find('\0') == std::string::npos;
}

std::string command(const fs::path& model, const std::string& revision) {
  return fmt::format("hf download {}{}",
                     repository_of(model),
                     revision == "main" ? "" : " --revision " + revision);
}

std::string first_line(std::string text) {
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  return text;
}

}  // namespace

std::optional<HubName> parse_hub_name(const std::string& name) {
  HubName parsed;
  const size_t at = name.find('@');
  parsed.repository = name.substr(0, at);
  if (at != std::string::npos) parsed.revision = name.substr(at + 1);
  const std::string& repository = parsed.repository;
  const auto is_allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  };
  const bool is_name = is_plain(repository) && is_plain(parsed.revision) &&
                       std::count(repository.begin(), repository.end(), '/') <= 1 &&
                       repository.find("/.") == std::string::npos &&
                       std::all_of(repository.begin(), repository.end(), is_allowed);
  return is_name ? std::optional(parsed) : std::nullopt;
}

fs::path hub_cache() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const fs::path home = set("HOME");
  const auto from_home = [&](const std::string& path) {
    return path.starts_with("~/") ? home / path.substr(2) : fs::path(path);
  };
  if (const std::string folder = set("HF_HUB_CACHE"); !folder.empty()) return from_home(folder);
  if (const std::string folder = set("HF_HOME"); !folder.empty()) return from_home(folder) / "hub";
  const std::string cache = set("XDG_CACHE_HOME");
  return (cache.empty() ? home / ".cache" : fs::path(cache)) / "huggingface" / "hub";
}

std::optional<fs::path> find_in_hub_cache(const HubName& name) {
  const fs::path model =
      hub_cache() / (std::string(kPrefix) + replaced(name.repository, "/", "--"));
  if (!is_folder(model)) return std::nullopt;
  return snapshot_of(model, name.revision);
}

fs::path snapshot_of(const fs::path& model, const std::string& revision) {
  const fs::path ref = model / "refs" / revision;
  const fs::path snapshots = model / "snapshots";
  if (is_there(ref)) {
    const std::string commit = first_line(read_regular_file(ref, kMaxRefBytes));
    const bool is_commit = is_plain(commit) && commit.find('/') == std::string::npos;
    if (is_commit && is_folder(snapshots / commit)) return snapshots / commit;
    throw Error(fmt::format("{}: names a snapshot that is not there: download the model again, {}",
                            ref.string(),
                            command(model, revision)));
  }
  if (is_folder(snapshots / revision)) return snapshots / revision;
  const std::vector<fs::path> all = entries_of(snapshots);
  if (revision == "main" && all.size() == 1) return all.front();
  if (revision == "main" && all.size() > 1) {
    throw Error(fmt::format(
        "{}: holds {} snapshots and no refs/main: give one of the folders in its snapshots folder",
        model.string(),
        all.size()));
  }
  throw Error(
      fmt::format("{}: has no revision {} of the model (nothing is downloaded: get it with "
                  "'{}')",
                  model.string(),
                  revision,
                  command(model, revision)));
}

void refuse_cut_off_download(const fs::path& snapshot) {
  const fs::path snapshots = snapshot.parent_path();
  const fs::path model = snapshots.parent_path();
  if (snapshots.filename() != "snapshots" || !model.filename().string().starts_with(kPrefix))
    return;
  const std::string advice =
      fmt::format("get the rest with '{}'", command(model, snapshot.filename().string()));
  for (const fs::path& entry : entries_of(snapshot)) {
    std::error_code ignored;
    if (fs::is_symlink(entry, ignored) && !is_there(entry)) {
      throw Error(
          fmt::format("{}: its data are not in the cache's blobs: {}", entry.string(), advice));
    }
  }
  for (const fs::path& blob : entries_of(model / "blobs")) {
    if (blob.extension() == ".incomplete") {
      throw Error(fmt::format("{}: its download is not complete: {}", snapshot.string(), advice));
    }
  }
}

}  // namespace outrider
