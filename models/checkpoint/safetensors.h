// Reads safetensors files by the strict rules: every offset is checked against the file's size
// before any memory is taken, tensors lie side by side without hole or overlap, and data comes by
// positioned reads. Used at load time on every rank; immutable after opening, so several threads
// may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/files/files.h"
#include "runtime/ops/tensor.h"

namespace outrider {

struct TensorInfo {
  std::string type_name;            // as the file says: "F32", "BF16", "I64", ...
  std::optional<ops::DType> dtype;  // of the types weights may have; none for the others
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // byte offset in the file
  uint64_t end = 0;
};

class SafetensorsFile {
 public:
  // Reads and checks the header. Throws Error naming the file, the tensor and what is wrong.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& name() const { return file_.name(); }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  // nullptr when the file has no such tensor.
  const TensorInfo* find(const std::string& tensor_name) const;
  // Bytes [offset, offset + num_bytes) of a tensor's data.
  void read(const TensorInfo& tensor, uint64_t offset, void* out, size_t num_bytes) const;
  // A hint that these bytes will be read in a moment.
  void expect_soon(const TensorInfo& tensor, uint64_t offset, size_t num_bytes) const {
    file_.expect_soon(tensor.begin + offset, num_bytes);
  }
  // Throws Error when the file is not the one that was opened any more.
  void check_unchanged() const { file_.check_unchanged(); }

 private:
  ReadOnlyFile file_;
  std::map<std::string, TensorInfo> tensors_;
};

// The weight files of a model folder: model.safetensors.index.json with the files it names, or else
// model.safetensors alone.
class Checkpoint {
 public:
  // `probe` is a tensor that every such model has. Where it is only there with another first part
  // of its name, all names that share its own are looked up so: models saved without their head,
  // and the text part of a model that also sees.
  explicit Checkpoint(const std::filesystem::path& model_dir, const std::string& probe = {});

  struct Entry {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;
  };
  // file and info are nullptr when no file has the tensor.
  Entry find(const std::string& tensor_name) const;
  // Of the tensors whose names begin so.
  int64_t num_tensors(const std::string& prefix) const;
  // Throws Error naming the file that was written to since it was opened.
  void check_unchanged() const;
  const std::map<std::string, SafetensorsFile>& files() const { return files_; }  // by name
  // The file that lists the tensors, for messages.
  const std::string& origin() const { return origin_; }

 private:
  Entry find_as_is(const std::string& tensor_name) const;
  std::string name_in_file(const std::string& name) const;
  void choose_prefix(const std::string& probe);
  void open_sharded(const std::filesystem::path& model_dir, const std::filesystem::path& index);

  std::string origin_;
  std::map<std::string, SafetensorsFile> files_;
  std::map<std::string, std::string> file_of_name_;  // tensor -> file name
  std::string own_prefix_;                           // "model."
  std::string file_prefix_;
};

// Bytes of an element of a type a safetensors file may have ("F32", "I8", ...); 0 = no such type.
uint64_t safetensors_element_bytes(const std::string& type_name);
// The name of a type that weights may have.
const char* safetensors_type_name(ops::DType dtype);

// shape as "[64, 128]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace outrider
