// Models in the local cache of the Hugging Face Hub: models--ORG--NAME/refs/REVISION holds a
// commit, snapshots/COMMIT its files, as links into blobs. Nothing is downloaded. Any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace outrider {

// "Qwen/Qwen3-0.6B" or "gpt2", perhaps with "@REVISION": a branch, a tag or a commit.
struct HubName {
  std::string repository;
  std::string revision = "main";
};
// Nothing for what cannot be such a name.
std::optional<HubName> parse_hub_name(const std::string& name);

// HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub.
std::filesystem::path hub_cache();

// The snapshot in the cache; nothing when the cache has no such model. Throws Error when it has the
// model, but not the revision.
std::optional<std::filesystem::path> find_in_hub_cache(const HubName& name);

// The snapshot of a model's folder in a cache, or the only one when `revision` is main and there is
// no refs/main. Throws Error for none.
std::filesystem::path snapshot_of(const std::filesystem::path& model, const std::string& revision);

// Throws Error when the folder is a snapshot with files missing, naming one and the command that
// gets them. Else returns.
void refuse_cut_off_download(const std::filesystem::path& snapshot);

}  // namespace outrider
