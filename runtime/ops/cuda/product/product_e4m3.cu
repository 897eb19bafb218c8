// Products with 8-bit weights, widened in registers to bf16.
#include "runtime/ops/cuda/product/product_kernels.h"
#include "runtime/ops/cuda/product/product_skinny.h"
#include "runtime/ops/cuda/product/product_skinny_experts.h"
#include "runtime/ops/cuda/product/product_wide.h"

namespace outrider::gpu {

void product_e4m3(Stream& stream, const ProductJob& job) {
  if (job.product.max_rows <= kMostSkinnyRows) {
    run_skinny<Type::kE4M3>(stream, job);
  } else {
    run_wide<Type::kE4M3>(stream, job);
  }
}

void product_e4m3(Stream& stream, const ExpertJob& job) {
  run_skinny_experts<Type::kE4M3>(stream, job);
}

}  // namespace outrider::gpu
