// The CUDA shared object where no GPU can be used: it loads, and says so in one sentence each time
// it is asked.
#include "runtime/ops/gpu/backend.h"

#include <gtest/gtest.h>

#include <string>

#include "runtime/base/error.h"

namespace outrider::gpu {
namespace {

std::string sentence_of_asking() {
  try {
    cuda_backend();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(CudaBackend, NoGpuIsOneSentence) {
  const std::string first = sentence_of_asking();
  EXPECT_EQ(first.rfind("device 'cuda': there is no ", 0), 0u) << first;
  EXPECT_TRUE(first.find("NVIDIA driver") != std::string::npos ||
              first.find("GPU") != std::string::npos)
      << first;
  EXPECT_EQ(first.find('\n'), std::string::npos);
  EXPECT_EQ(first.find("could not be loaded"), std::string::npos) << first;
  EXPECT_EQ(sentence_of_asking(), first);
}

}  // namespace
}  // namespace outrider::gpu
