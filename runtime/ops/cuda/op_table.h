// The ops by name, one file of kernels each; and the table that hands them out. Declared here, so
// that a missing one is a link error.
#pragma once

#include "runtime/ops/gpu/exchange.h"
#include "runtime/ops/gpu/experts.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider::gpu {

void activate(Stream& stream, const ActivateArgs& args);                // activate.cu
void add_norm(Stream& stream, const AddNormArgs& args);                 // add_norm.cu
void add_positions(Stream& stream, const AddPositionsArgs& args);       // add_positions.cu
void attention(Stream& stream, const AttentionArgs& args);              // attention_merge.cu
void bend_logits(Stream& stream, const BendLogitsArgs& args);           // bend_logits.cu
void copy_block(Stream& stream, const BlockCopyArgs& args);             // kv_blocks.cu
void embed(Stream& stream, const EmbedArgs& args);                      // embed.cu
void exchange_norm(Stream& stream, const ExchangeNormArgs& args);       // exchange.cu
void exchange_sum(Stream& stream, const ExchangeSumArgs& args);         // exchange.cu
void fold_parts(Stream& stream, const FoldPartsArgs& args);             // fold_parts.cu
void fill_blocks(Stream& stream, const BlockFillArgs& args);            // kv_blocks.cu
void head_product(Stream& stream, const HeadProductArgs& args);         // head_product.cu
void head_squares(Stream& stream, const HeadSquaresArgs& args);         // head_squares.cu
void latent_write(Stream& stream, const LatentWriteArgs& args);         // latent_write.cu
void norm(Stream& stream, const NormArgs& args);                        // norm.cu
void per_layer_inputs(Stream& stream, const PerLayerInputsArgs& args);  // per_layer_inputs.cu
void rope_write(Stream& stream, const RopeWriteArgs& args);             // rope_write.cu
void route_rows(Stream& stream, const RouteArgs& args);                 // tile_pairs.cu
void scan_rows(Stream& stream, const RowTasks& tasks);                  // row_scan.cu
void sum_experts(Stream& stream, const SumExpertsArgs& args);           // sum_experts.cu
void take_tokens(Stream& stream, const TakeTokensArgs& args);           // row_tokens.cu

// product.cu
void store_product(Stream& stream, const ProductArgs& args, const StoreArgs& to);
void qkv_product(Stream& stream, const ProductArgs& args, const QkvArgs& to);
void swiglu_product(Stream& stream, const ProductArgs& args, const SwigluArgs& to);
void expert_gate_up(Stream& stream, const ProductArgs& args, const ExpertGateUpArgs& to);
void expert_down(Stream& stream, const ProductArgs& args, const ExpertDownArgs& to);

void fill_random(Stream& stream, const RandomArgs& args);  // random.cu

inline OpTable op_table() {
  return {.embed = embed,
          .add_positions = add_positions,
          .norm = norm,
          .add_norm = add_norm,
          .head_squares = head_squares,
          .rope_write = rope_write,
          .head_product = head_product,
          .latent_write = latent_write,
          .attention = attention,
          .copy_block = copy_block,
          .fill_blocks = fill_blocks,
          .exchange_sum = exchange_sum,
          .exchange_norm = exchange_norm,
          .fold_parts = fold_parts,
          .store_product = store_product,
          .qkv_product = qkv_product,
          .swiglu_product = swiglu_product,
          .route_rows = route_rows,
          .expert_gate_up = expert_gate_up,
          .expert_down = expert_down,
          .sum_experts = sum_experts,
          .activate = activate,
          .per_layer_inputs = per_layer_inputs,
          .bend_logits = bend_logits,
          .fill_random = fill_random,
          .scan_rows = scan_rows,
          .take_tokens = take_tokens};
}

}  // namespace outrider::gpu
