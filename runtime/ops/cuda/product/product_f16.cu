// Products with f16 weights.
#include "runtime/ops/cuda/product/product_kernels.h"
#include "runtime/ops/cuda/product/product_skinny.h"
#include "runtime/ops/cuda/product/product_skinny_experts.h"
#include "runtime/ops/cuda/product/product_wide.h"

namespace outrider::gpu {

void product_f16(Stream& stream, const ProductJob& job) {
  if (job.product.max_rows <= kMostSkinnyRows) {
    run_skinny<Type::kF16>(stream, job);
  } else {
    run_wide<Type::kF16>(stream, job);
  }
}

void product_f16(Stream& stream, const ExpertJob& job) {
  run_skinny_experts<Type::kF16>(stream, job);
}

}  // namespace outrider::gpu
