// What activation_dtype comes to on this machine.
#include <gtest/gtest.h>

#include "runtime/ranks/loading/cpu_dtypes.h"

namespace outrider {
namespace {

ops::Activations resolved(const std::string& dtype, int32_t hidden_dim, const std::string& isa) {
  RunConfig config;
  config.activation_dtype = dtype;
  config.isa = isa;
  ModelConfig model;
  model.hidden_dim = hidden_dim;
  return activations_of(config, model);
}

TEST(ActivationDtype, NamedOnesAreTakenAsTheyAre) {
  for (const int32_t hidden_dim : {64, 4096}) {
    for (const char* isa : {"auto", "scalar"}) {
      EXPECT_EQ(resolved("float32", hidden_dim, isa), ops::Activations::kF32);
      EXPECT_EQ(resolved("bfloat16", hidden_dim, isa), ops::Activations::kBF16);
    }
  }
}

TEST(ActivationDtype, AutoRoundsLargeModelsWhereTheCpuMultipliesBf16) {
  const ops::Activations here =
      ops::has_bf16_dot() ? ops::Activations::kBF16 : ops::Activations::kF32;
  EXPECT_EQ(RunConfig().activation_dtype, "auto");
  EXPECT_EQ(resolved("auto", 512, "auto"), here);
  EXPECT_EQ(resolved("auto", 4096, "auto"), here);
  EXPECT_EQ(resolved("auto", 511, "auto"), ops::Activations::kF32);
  EXPECT_EQ(resolved("auto", 4096, "scalar"), ops::Activations::kF32);
}

// Keys and values are kept as products take them. Those with f16 and f32 weights round nothing.
TEST(KvCacheDtype, AutoIsTheActivationsType) {
  RunConfig config;
  ModelConfig model;
  model.hidden_dim = 64;
  EXPECT_EQ(kv_type_of(config, model), ops::KvType::kF32);
  config.activation_dtype = "bfloat16";
  EXPECT_EQ(kv_type_of(config, model), ops::KvType::kBF16);
  for (const ops::DType dtype : {ops::DType::kF16, ops::DType::kF32}) {
    model.dtype = dtype;
    EXPECT_EQ(kv_type_of(config, model), ops::KvType::kF32);
  }
  model.load_format.bits = 8;
  EXPECT_EQ(kv_type_of(config, model), ops::KvType::kBF16);
  config.kv_cache_dtype = "int8";
  EXPECT_EQ(kv_type_of(config, model), ops::KvType::kInt8);
}

}  // namespace
}  // namespace outrider
