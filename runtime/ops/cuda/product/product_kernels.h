// Products by the type of their weights, one file each.
#pragma once

#include "runtime/ops/cuda/product/product_epilogue.h"
#include "runtime/ops/cuda/product/product_experts.h"

namespace outrider::gpu {

void product_f32(Stream& stream, const ProductJob& job);
void product_bf16(Stream& stream, const ProductJob& job);
void product_f16(Stream& stream, const ProductJob& job);
void product_e4m3(Stream& stream, const ProductJob& job);

void product_f32(Stream& stream, const ExpertJob& job);
void product_bf16(Stream& stream, const ExpertJob& job);
void product_f16(Stream& stream, const ExpertJob& job);
void product_e4m3(Stream& stream, const ExpertJob& job);

}  // namespace outrider::gpu
