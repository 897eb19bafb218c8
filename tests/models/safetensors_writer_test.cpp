// What the safetensors writer writes the strict reader reads, in one file and in several; nothing
// half written has a file's name; plans and bytes that do not fit are refused.
#include "models/checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "models/checkpoint/safetensors.h"
#include "runtime/base/error.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

const std::vector<PlannedTensor> kPlan = {{"a.weight", "F32", {3, 2}},
                                          {"empty", "BF16", {0, 4}},
                                          {"b", "BF16", {5}},
                                          {"scales", "F16", {2, 1}},
                                          {"packed", "I8", {7}}};

std::vector<std::byte> bytes_of(const PlannedTensor& tensor, unsigned seed) {
  std::vector<std::byte> bytes(tensor.num_bytes());
  for (std::byte& byte : bytes) {
    seed = seed * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return bytes;
}

void write_all(CheckpointWriter& writer, const std::vector<PlannedTensor>& plan, size_t piece) {
  for (size_t i = 0; i < plan.size(); ++i) {
    const std::vector<std::byte> bytes = bytes_of(plan[i], static_cast<unsigned>(i));
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const size_t end = std::min(bytes.size(), at + piece);
      writer.append(plan[i].name, std::span(bytes).subspan(at, end - at));
    }
  }
}

void expect_tensor(const Checkpoint& checkpoint, const PlannedTensor& tensor, unsigned seed) {
  const auto [file, info] = checkpoint.find(tensor.name);
  ASSERT_NE(info, nullptr) << tensor.name;
  EXPECT_EQ(info->type_name, tensor.type_name);
  EXPECT_EQ(info->shape, tensor.shape);
  std::vector<std::byte> got(tensor.num_bytes());
  file->read(*info, 0, got.data(), got.size());
  EXPECT_EQ(got, bytes_of(tensor, seed)) << tensor.name;
}

size_t num_files(const TempDir& dir) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir.path()), {}));
}

TEST(SafetensorsWriter, TheReaderReadsItBack) {
  std::set<std::byte> values;
  for (const std::byte byte : bytes_of(kPlan[0], 0)) values.insert(byte);
  ASSERT_GT(values.size(), 10u);
  for (const size_t piece : {size_t{1}, size_t{5}, size_t{1000}}) {
    const TempDir dir;
    CheckpointWriter writer(dir.path(), kPlan);
    EXPECT_EQ(writer.total_bytes(), 24u + 0u + 10u + 4u + 7u);
    write_all(writer, kPlan, piece);
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "model.safetensors"));
    writer.finish();
    EXPECT_EQ(num_files(dir), 1u);
    const Checkpoint checkpoint(dir.path());
    for (size_t i = 0; i < kPlan.size(); ++i) {
      expect_tensor(checkpoint, kPlan[i], static_cast<unsigned>(i));
    }
    EXPECT_EQ(SafetensorsFile(dir.path() / "model.safetensors").find("b")->begin % 2, 0u);
  }
}

TEST(SafetensorsWriter, SeveralFilesHaveAnIndex) {
  const TempDir dir;
  CheckpointWriter writer(dir.path(), kPlan, 12);  // a.weight is larger and has its own file
  write_all(writer, kPlan, 4);
  writer.finish();
  EXPECT_EQ(num_files(dir), 4u);
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "model-00003-of-00003.safetensors"));
  const Checkpoint checkpoint(dir.path());
  for (size_t i = 0; i < kPlan.size(); ++i) {
    expect_tensor(checkpoint, kPlan[i], static_cast<unsigned>(i));
  }
  EXPECT_EQ(SafetensorsFile(dir.path() / "model-00001-of-00003.safetensors").tensors().size(), 1u);
}

TEST(SafetensorsWriter, NothingHalfIsLeft) {
  const TempDir dir;
  {
    CheckpointWriter writer(dir.path(), kPlan);
    writer.append("a.weight", bytes_of(kPlan[0], 0));
    EXPECT_EQ(num_files(dir), 1u) << "the partial file";
  }
  EXPECT_EQ(num_files(dir), 0u);
}

TEST(SafetensorsWriter, RefusesBadPlans) {
  const TempDir dir;
  const auto plan_of = [](const char* type, std::vector<int64_t> shape) {
    return std::vector<PlannedTensor>{{"x", type, std::move(shape)}};
  };
  EXPECT_THROW(CheckpointWriter(dir.path(), plan_of("F31", {1})), Error);
  EXPECT_THROW(CheckpointWriter(dir.path(), plan_of("F32", {-1})), Error);
  EXPECT_THROW(CheckpointWriter(dir.path(), plan_of("F32", {INT64_MAX, 8})), Error);
  EXPECT_THROW(CheckpointWriter(dir.path(), {kPlan[0], kPlan[0]}), Error);
  EXPECT_THROW(CheckpointWriter(dir.path() / "none", kPlan), Error);
  EXPECT_EQ(num_files(dir), 0u);
  dir.write("model.safetensors", "something");
  EXPECT_THROW(CheckpointWriter(dir.path(), kPlan), Error);
  EXPECT_EQ(read_bytes(dir.path() / "model.safetensors"), "something");
}

TEST(SafetensorsWriterDeathTest, BytesOutOfOrderAreAFault) {
  const TempDir dir;
  SafetensorsWriter writer(dir.path() / "x", kPlan);
  EXPECT_DEATH(writer.append("b", bytes_of(kPlan[2], 2)), "tensor_name") << "a.weight comes first";
  EXPECT_DEATH(writer.append("a.weight", std::vector<std::byte>(25)), "num_bytes_left");
  EXPECT_DEATH(writer.finish(), "is_full");
}

}  // namespace
}  // namespace outrider
