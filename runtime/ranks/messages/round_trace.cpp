// See round_trace.h.
#include "runtime/ranks/messages/round_trace.h"

#include "runtime/base/telemetry/trace.h"

namespace outrider {
namespace {

// Replies and blocks are packed where they arrive, and look the same otherwise.
int64_t num_tokens_of(const auto& reply) {
  int64_t num_tokens = 0;
  for (const auto& block : reply.blocks) num_tokens += std::ssize(block.tokens);
  return num_tokens;
}

uint64_t arrow_of(const auto& block) {
  return tokens_arrow({.sequence_id = block.sequence_id,
                       .round = block.round,
                       .base_len = block.base_len,
                       .guess = block.guess,
                       .first = block.first});
}

void trace_block(TraceKind kind, const auto& block) {
  trace_sequence(kind,
                 block.sequence_id,
                 {block.round, block.base_len, block.guess, block.first, std::ssize(block.tokens)});
}

}  // namespace

void trace_reply_out(const DraftReply& reply) {
  if (thread_trace == nullptr) return;
  const TraceSpan span(TraceKind::kSendReply, {std::ssize(reply.blocks), num_tokens_of(reply)});
  for (const DraftBlock& block : reply.blocks) {
    trace_block(TraceKind::kDrafted, block);
    trace_flow_out(arrow_of(block));
  }
}

void trace_reply_in(const PackedReply& reply) {
  if (thread_trace == nullptr) return;
  const TraceSpan span(TraceKind::kTakeDraftReply,
                       {std::ssize(reply.blocks), num_tokens_of(reply)});
  for (const PackedBlock& block : reply.blocks) {
    trace_flow_in(arrow_of(block));
    trace_block(TraceKind::kBlockArrived, block);
  }
}

}  // namespace outrider
