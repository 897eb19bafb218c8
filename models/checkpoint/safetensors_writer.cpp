// Headers, indices and the order of bytes; see safetensors_writer.h.
#include "models/checkpoint/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "models/checkpoint/safetensors.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

// Keeps the order in which tensors are planned, as their bytes follow in it.
using Json = nlohmann::ordered_json;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr size_t kHeaderAlignment = 8;

std::string header_of(const std::vector<PlannedTensor>& tensors) {
  Json header;
  header["__metadata__"] = Json{{"format", "pt"}};
  uint64_t end = 0;
  for (const PlannedTensor& tensor : tensors) {
    const uint64_t begin = end;
    end += tensor.num_bytes();
    header[tensor.name] =
        Json{{"dtype", tensor.type_name}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

// In planned order, each file as full as the limit allows; a larger tensor has a file of its own.
std::vector<std::vector<PlannedTensor>> cut(const std::vector<PlannedTensor>& tensors,
                                            uint64_t max_file_bytes) {
  std::vector<std::vector<PlannedTensor>> parts(1);
  uint64_t num_bytes = 0;
  for (const PlannedTensor& tensor : tensors) {
    if (!parts.back().empty() && num_bytes + tensor.num_bytes() > max_file_bytes) {
      parts.emplace_back();
      num_bytes = 0;
    }
    parts.back().push_back(tensor);
    num_bytes += tensor.num_bytes();
  }
  return parts;
}

}  // namespace

uint64_t PlannedTensor::num_bytes() const {
  uint64_t bytes = safetensors_element_bytes(type_name);
  if (bytes == 0) throw Error(fmt::format("tensor \"{}\": no type \"{}\"", name, type_name));
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      throw Error(fmt::format("tensor \"{}\": shape {} is impossible", name, shape_text(shape)));
    }
  }
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<PlannedTensor>& tensors)
    : file_(path) {
  const std::string header = header_of(tensors);
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  file_.append(length);
  file_.append(header);
  for (const PlannedTensor& tensor : tensors) {
    if (tensor.num_bytes() > 0) pending_.push_back({tensor.name, tensor.num_bytes()});
  }
}

void SafetensorsWriter::append(const std::string& tensor_name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  OUTRIDER_CHECK(!pending_.empty() && pending_.front().name == tensor_name);
  OUTRIDER_CHECK(bytes.size() <= pending_.front().num_bytes_left);
  file_.append(bytes.data(), bytes.size());
  pending_.front().num_bytes_left -= bytes.size();
  if (pending_.front().num_bytes_left == 0) pending_.pop_front();
}

void SafetensorsWriter::finish() {
  OUTRIDER_CHECK(is_full());
  file_.finish();
}

CheckpointWriter::CheckpointWriter(std::filesystem::path folder,
                                   const std::vector<PlannedTensor>& tensors,
                                   uint64_t max_file_bytes)
    : folder_(std::move(folder)), parts_(cut(tensors, max_file_bytes)) {
  for (const char* name : {kSingleName, kIndexName}) {
    std::error_code ignored;
    if (std::filesystem::exists(folder_ / name, ignored)) {
      throw Error(fmt::format("{} is there already", (folder_ / name).string()));
    }
  }
  std::set<std::string> names;
  for (const PlannedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw Error(fmt::format("tensor \"{}\" would be written twice", tensor.name));
    }
    total_bytes_ += tensor.num_bytes();
  }
  turn_page();
}

std::string CheckpointWriter::file_name(size_t part) const {
  if (parts_.size() == 1) return kSingleName;
  return fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, parts_.size());
}

// Finishes the file being written, if any, and begins the next.
void CheckpointWriter::turn_page() {
  if (writer_) writer_->finish();
  writer_.reset();
  if (num_begun_ == parts_.size()) return;
  writer_.emplace(folder_ / file_name(num_begun_), parts_[num_begun_]);
  ++num_begun_;
}

void CheckpointWriter::append(const std::string& tensor_name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  while (writer_ && writer_->is_full() && num_begun_ < parts_.size()) turn_page();
  OUTRIDER_CHECK(writer_.has_value());
  writer_->append(tensor_name, bytes);
}

std::string CheckpointWriter::index_text() const {
  Json index;
  index["metadata"] = Json{{"total_size", total_bytes_}};
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (const PlannedTensor& tensor : parts_[part]) {
      index["weight_map"][tensor.name] = file_name(part);
    }
  }
  return index.dump(2) + "\n";
}

void CheckpointWriter::finish() {
  while (writer_) turn_page();
  if (parts_.size() > 1) write_new_file(folder_ / kIndexName, index_text());
}

}  // namespace outrider
