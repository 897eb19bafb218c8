// Products with 8-bit weights, widened in registers to the type of the activations.
#include "runtime/ops/cuda/product/product_kernels.h"
#include "runtime/ops/cuda/product/product_skinny.h"
#include "runtime/ops/cuda/product/product_skinny_experts.h"
#include "runtime/ops/cuda/product/product_wide.h"

namespace outrider::gpu {
namespace {

template <Type kInputs>
void run(Stream& stream, const ProductJob& job) {
  if (job.product.max_rows <= kMostSkinnyRows) {
    run_skinny<Type::kE4M3, kInputs>(stream, job);
  } else {
    run_wide<Type::kE4M3, kInputs>(stream, job);
  }
}

}  // namespace

void product_e4m3(Stream& stream, const ProductJob& job) {
  if (job.product.in.type == Type::kBF16) {
    run<Type::kBF16>(stream, job);
  } else {
    run<Type::kF16>(stream, job);
  }
}

void experts_e4m3(Stream& stream, const ExpertJob& job) {
  run_skinny_experts<Type::kE4M3, Type::kBF16>(stream, job);
}

}  // namespace outrider::gpu
