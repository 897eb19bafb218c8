// Header checks and positioned reads of safetensors files; see safetensors.h.
#include "models/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "models/checkpoint/checked_json.h"
#include "models/checkpoint/folder_mistakes.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxFiles = 10'000;
constexpr size_t kMaxFileNameBytes = 255;

struct TypeRow {
  const char* name;
  uint64_t bytes;
  std::optional<ops::DType> dtype;
};

// Types that may stand in a file; only those with a DType can be weights.
const TypeRow* find_type(const std::string& name) {
  static const TypeRow kTypes[] = {{"F32", 4, ops::DType::kF32},
                                   {"BF16", 2, ops::DType::kBF16},
                                   {"F16", 2, ops::DType::kF16},
                                   {"F64", 8, {}},
                                   {"I64", 8, {}},
                                   {"I32", 4, {}},
                                   {"I16", 2, {}},
                                   {"I8", 1, {}},
                                   {"U64", 8, {}},
                                   {"U32", 4, {}},
                                   {"U16", 2, {}},
                                   {"U8", 1, {}},
                                   {"F8_E4M3", 1, {}},
                                   {"F8_E5M2", 1, {}},
                                   {"BOOL", 1, {}}};
  for (const TypeRow& row : kTypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

// The file and tensor a complaint is about.
struct Place {
  const std::string& file;
  const std::string& tensor;
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: tensor \"{}\": {}", file, printable(tensor), what));
  }
};

uint64_t checked_product(uint64_t a, uint64_t b, const Place& place) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) place.fail("its shape is too large");
  return product;
}

std::vector<int64_t> parse_shape(const Json& entry, const Place& place) {
  const auto found = entry.find("shape");
  if (found == entry.end() || !found->is_array()) place.fail("has no shape");
  if (found->size() > kMaxRank) {
    place.fail(fmt::format("has {} dimensions; at most {} are read", found->size(), kMaxRank));
  }
  std::vector<int64_t> shape;
  for (const Json& size : *found) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > (uint64_t{1} << 48)) {
      place.fail("its shape holds something that is not a size");
    }
    shape.push_back(static_cast<int64_t>(size.get<uint64_t>()));
  }
  return shape;
}

std::pair<uint64_t, uint64_t> parse_offsets(const Json& entry, const Place& place) {
  const auto found = entry.find("data_offsets");
  if (found == entry.end() || !found->is_array() || found->size() != 2 ||
      !(*found)[0].is_number_unsigned() || !(*found)[1].is_number_unsigned()) {
    place.fail("has no data_offsets [begin, end]");
  }
  return {(*found)[0].get<uint64_t>(), (*found)[1].get<uint64_t>()};
}

// One entry of the header; begin and end still count from the end of the header.
TensorInfo parse_tensor(const Json& entry, uint64_t data_bytes, const Place& place) {
  if (!entry.is_object()) place.fail("its entry is not an object");
  const auto type = entry.find("dtype");
  if (type == entry.end() || !type->is_string()) place.fail("has no dtype");
  const TypeRow* row = find_type(type->get_ref<const std::string&>());
  if (row == nullptr) {
    place.fail(fmt::format("its dtype \"{}\" is not known",
                           printable(type->get_ref<const std::string&>())));
  }
  TensorInfo info;
  info.type_name = row->name;
  info.dtype = row->dtype;
  info.shape = parse_shape(entry, place);
  std::tie(info.begin, info.end) = parse_offsets(entry, place);
  if (info.begin > info.end || info.end > data_bytes) {
    place.fail(fmt::format("its data_offsets [{}, {}] do not lie in the file's {} bytes of data",
                           info.begin,
                           info.end,
                           data_bytes));
  }
  uint64_t num_bytes = row->bytes;
  for (const int64_t size : info.shape) {
    num_bytes = checked_product(num_bytes, static_cast<uint64_t>(size), place);
  }
  if (num_bytes != info.end - info.begin) {
    place.fail(fmt::format("its shape {} of {} needs {} bytes but data_offsets give {}",
                           shape_text(info.shape),
                           info.type_name,
                           num_bytes,
                           info.end - info.begin));
  }
  return info;
}

// In order of offset every tensor must start where the last one ended, and the last one ends the
// file.
void check_no_holes(const std::map<std::string, TensorInfo>& tensors,
                    uint64_t data_bytes,
                    const std::string& file) {
  std::vector<std::pair<const std::string*, const TensorInfo*>> sorted;
  sorted.reserve(tensors.size());
  for (const auto& [name, info] : tensors) sorted.emplace_back(&name, &info);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  uint64_t end = 0;
  for (const auto& [name, info] : sorted) {
    if (info->begin != end) {
      Place{file, *name}.fail(
          fmt::format("its data begin at {} but the tensor before ends at {}", info->begin, end));
    }
    end = info->end;
  }
  if (end != data_bytes) {
    throw Error(fmt::format(
        "{}: the header describes {} bytes of data but the file has {}", file, end, data_bytes));
  }
}

std::string read_header(const ReadOnlyFile& file) {
  if (file.size_bytes() < 8) {
    throw Error(fmt::format("{}: is too short for a safetensors file", file.name()));
  }
  unsigned char raw[8];
  file.read_at(0, raw, sizeof(raw));
  std::string begin(std::min<uint64_t>(file.size_bytes(), kPointerBegin.size()), '\0');
  file.read_at(0, begin.data(), begin.size());
  refuse_pointer_file(file.name(), begin);
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | raw[i];
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size_bytes() - 8) {
    throw Error(fmt::format("{}: its header claims {} bytes, more than the file has or is allowed",
                            file.name(),
                            header_bytes));
  }
  std::string header(header_bytes, '\0');
  file.read_at(8, header.data(), header.size());
  return header;
}

std::map<std::string, TensorInfo> parse_header(const std::string& header,
                                               const ReadOnlyFile& file) {
  check_json(header, {.max_bytes = kMaxHeaderBytes, .max_depth = 4}, file.name());
  const Json json = Json::parse(header);
  if (json.size() > kMaxTensors) {
    throw Error(fmt::format(
        "{}: lists {} tensors; at most {} are read", file.name(), json.size(), kMaxTensors));
  }
  const uint64_t data_begin = 8 + header.size();
  const uint64_t data_bytes = file.size_bytes() - data_begin;
  std::map<std::string, TensorInfo> tensors;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    const Place place{file.name(), name};
    if (name.empty() || name.size() > kMaxNameBytes) place.fail("its name has a wrong length");
    tensors.emplace(name, parse_tensor(entry, data_bytes, place));
  }
  check_no_holes(tensors, data_bytes, file.name());
  for (auto& [name, info] : tensors) {
    info.begin += data_begin;
    info.end += data_begin;
  }
  return tensors;
}

}  // namespace

uint64_t safetensors_element_bytes(const std::string& type_name) {
  const TypeRow* row = find_type(type_name);
  return row == nullptr ? 0 : row->bytes;
}

const char* safetensors_type_name(ops::DType dtype) {
  if (dtype == ops::DType::kF32) return "F32";
  return dtype == ops::DType::kBF16 ? "BF16" : "F16";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  tensors_ = parse_header(read_header(file_), file_);
}

const TensorInfo* SafetensorsFile::find(const std::string& tensor_name) const {
  const auto found = tensors_.find(tensor_name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void SafetensorsFile::read(const TensorInfo& tensor,
                           uint64_t offset,
                           void* out,
                           size_t num_bytes) const {
  OUTRIDER_CHECK(offset <= tensor.end - tensor.begin);
  OUTRIDER_CHECK(num_bytes <= tensor.end - tensor.begin - offset);
  file_.read_at(tensor.begin + offset, out, num_bytes);
}

Checkpoint::Checkpoint(const std::filesystem::path& model_dir, const std::string& probe) {
  const std::filesystem::path index = model_dir / "model.safetensors.index.json";
  const std::filesystem::path single = model_dir / "model.safetensors";
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    origin_ = single.string();
    const auto& file = files_.try_emplace("model.safetensors", single).first->second;
    for (const auto& [name, info] : file.tensors())
      file_of_name_.emplace(name, "model.safetensors");
  } else if (std::filesystem::exists(index, ignored)) {
    open_sharded(model_dir, index);
  } else {
    refuse_without_weights(model_dir);
  }
  choose_prefix(probe);
}

void Checkpoint::choose_prefix(const std::string& probe) {
  if (probe.empty() || file_of_name_.contains(probe)) return;
  const std::string own = probe.substr(0, probe.find('.') + 1);
  for (const std::string& other :
       {std::string(), "language_model." + own, own + "language_model."}) {
    if (!file_of_name_.contains(other + probe.substr(own.size()))) continue;
    own_prefix_ = own;
    file_prefix_ = other;
    return;
  }
}

namespace {

// A name that can only mean a file of the model folder itself.
void check_file_name(const std::string& name, const std::string& index) {
  const bool plain = !name.empty() && name.size() <= kMaxFileNameBytes && name[0] != '.' &&
                     name.find_first_of(std::string("/\\\0", 3)) == std::string::npos &&
                     name.find("..") == std::string::npos && name.ends_with(".safetensors");
  if (!plain) {
    throw Error(fmt::format("{}: \"{}\" is not the name of a .safetensors file of this folder",
                            index,
                            printable(name)));
  }
}

}  // namespace

void Checkpoint::open_sharded(const std::filesystem::path& model_dir,
                              const std::filesystem::path& index) {
  origin_ = index.string();
  const Json json =
      Json::parse(read_json_file(index, {.max_bytes = kMaxHeaderBytes, .max_depth = 4}));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty() || map->size() > kMaxTensors) {
    throw Error(fmt::format("{}: has no usable weight_map", origin_));
  }
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      throw Error(
          fmt::format("{}: the file of tensor \"{}\" is not a text", origin_, printable(tensor)));
    }
    const auto& file_name = file.get_ref<const std::string&>();
    if (!files_.contains(file_name)) {
      check_file_name(file_name, origin_);
      if (files_.size() >= kMaxFiles) throw Error(fmt::format("{}: names too many files", origin_));
      std::error_code ignored;
      if (!std::filesystem::exists(model_dir / file_name, ignored))
        refuse_missing_shard(model_dir, file_name);
      files_.try_emplace(file_name, model_dir / file_name);
    }
    if (files_.at(file_name).find(tensor) == nullptr) {
      throw Error(fmt::format("{}: says tensor \"{}\" is in {}, which does not have it",
                              origin_,
                              printable(tensor),
                              file_name));
    }
    file_of_name_.emplace(tensor, file_name);
  }
}

void Checkpoint::check_unchanged() const {
  for (const auto& [name, file] : files_) file.check_unchanged();
}

std::string Checkpoint::name_in_file(const std::string& name) const {
  if (own_prefix_.empty() || !name.starts_with(own_prefix_)) return name;
  return file_prefix_ + name.substr(own_prefix_.size());
}

// The head lies beside the model that the prefix is of.
Checkpoint::Entry Checkpoint::find(const std::string& tensor_name) const {
  const Entry entry = find_as_is(name_in_file(tensor_name));
  const bool is_inside = own_prefix_.empty() || tensor_name.starts_with(own_prefix_);
  return is_inside || entry.info != nullptr ? entry : find_as_is("language_model." + tensor_name);
}

int64_t Checkpoint::num_tensors(const std::string& prefix) const {
  const std::string begin = name_in_file(prefix);
  int64_t count = 0;
  for (auto at = file_of_name_.lower_bound(begin); at != file_of_name_.end(); ++at, ++count) {
    if (!at->first.starts_with(begin)) break;
  }
  return count;
}

Checkpoint::Entry Checkpoint::find_as_is(const std::string& tensor_name) const {
  const auto found = file_of_name_.find(tensor_name);
  if (found == file_of_name_.end()) return {};
  const SafetensorsFile& file = files_.at(found->second);
  return {&file, file.find(tensor_name)};
}

}  // namespace outrider
