// See folder_mistakes.h.
#include "models/checkpoint/folder_mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/checkpoint/folder_look.h"
#include "models/checkpoint/hub_cache.h"
#include "models/gguf/gguf_file.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// The name of the first entry that ends so, or empty.
std::string entry_ending(const fs::path& folder, std::string_view ending) {
  for (const fs::path& entry : entries_of(folder))
    if (entry.filename().string().ends_with(ending)) return entry.filename().string();
  return {};
}

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw Error(fmt::format("{}: {}", path.string(), what));
}

std::string python(const std::string& program) {
  return fmt::format("python3 -c \"from transformers import {}\"", program);
}

void refuse_adapter(const fs::path& folder) {
  if (!is_there(folder / "adapter_config.json")) return;
  fail(folder,
       fmt::format("holds a LoRA adapter, not a model: merge it into its base model first, "
                   "python3 -c \"from peft import AutoPeftModelForCausalLM as M; "
                   "M.from_pretrained('{}').merge_and_unload().save_pretrained('MERGED')\"",
                   folder.string()));
}

[[noreturn]] void refuse_no_folder(const std::string& name) {
  const fs::path path = name;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none)
    throw Error(fmt::format("model folder '{}' cannot be looked at: {}", name, error.message()));
  if (status.type() == fs::file_type::not_found) {
    const auto hub_name = parse_hub_name(name);
    if (!hub_name || hub_name->repository.find('/') == std::string::npos) {
      throw Error(fmt::format(
          "model folder '{}' does not exist (nothing is downloaded: give a Hugging Face folder)",
          name));
    }
    throw Error(fmt::format(
        "model folder '{}' does not exist, nor is the model in the cache {} (nothing is "
        "downloaded: get it with 'hf download {}')",
        name,
        hub_cache().string(),
        hub_name->repository));
  }
  if (is_there(path.parent_path() / "config.json")) {
    throw Error(fmt::format(
        "'{}' is a file of a model: give its folder, '{}'", name, path.parent_path().string()));
  }
  throw Error(fmt::format("'{}' is a file: give a Hugging Face model folder", name));
}

}  // namespace

fs::path find_model_folder(const std::string& name) {
  const fs::path folder = name;
  if (is_gguf(folder) && is_there(folder)) return folder;
  if (const auto hub_name = parse_hub_name(name); hub_name && !is_there(folder)) {
    if (const auto snapshot = find_in_hub_cache(*hub_name)) return *snapshot;
  }
  if (!is_folder(folder)) refuse_no_folder(name);
  const bool is_cache = !is_there(folder / "config.json") && is_folder(folder / "snapshots");
  return is_cache ? snapshot_of(folder, "main") : folder;
}

void refuse_without_config(const fs::path& folder) {
  refuse_adapter(folder);
  refuse_cut_off_download(folder);
  if (entries_of(folder).empty()) fail(folder, "is an empty folder, not a model");
  if (is_there(folder / "target" / "config.json") && is_there(folder / "draft" / "config.json")) {
    fail(folder,
         fmt::format("holds two models: give --model {} --speculative-config.model {}",
                     (folder / "target").string(),
                     (folder / "draft").string()));
  }
  if (!entry_ending(folder, ".gguf").empty()) {
    fail(folder, "has a GGUF file and no config.json: give the file itself");
  }
  fail(folder, "has no config.json, so it is no Hugging Face model folder");
}

void refuse_without_weights(const fs::path& folder) {
  refuse_adapter(folder);
  refuse_cut_off_download(folder);
  std::string old = entry_ending(folder, ".bin");
  if (!old.starts_with("pytorch_model")) old = entry_ending(folder, ".pt");
  if (old.empty()) old = entry_ending(folder, ".pth");
  if (!old.empty()) {
    fail(folder,
         fmt::format("has its weights in {} only, which is not read: convert them, {}",
                     old,
                     python(fmt::format("AutoModelForCausalLM as M; M.from_pretrained('{0}', "
                                        "torch_dtype='auto').save_pretrained('{0}')",
                                        folder.string()))));
  }
  fail(folder, "has neither model.safetensors nor model.safetensors.index.json");
}

void refuse_missing_shard(const fs::path& folder, const std::string& file) {
  refuse_cut_off_download(folder);
  fail(folder / file,
       "is not there, though model.safetensors.index.json names it: copy or download it again");
}

void refuse_without_tokenizer(const fs::path& folder) {
  refuse_cut_off_download(folder);
  for (const char* other : {"tokenizer.model", "vocab.json", "spiece.model"}) {
    if (!is_there(folder / other)) continue;
    fail(folder,
         fmt::format("has {} but no tokenizer.json: make it, {}",
                     other,
                     python(fmt::format(
                         "AutoTokenizer as T; T.from_pretrained('{0}').save_pretrained('{0}')",
                         folder.string()))));
  }
  fail(folder, "has no tokenizer.json");
}

}  // namespace outrider
