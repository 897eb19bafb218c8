// How a draft outside the job introduces itself over TCP, and what it is told: the first message of
// each side, before any frame. Both begin with magic and version, so that another version can be
// refused with a sentence that it reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/comm/wire.h"

namespace outrider {

inline constexpr size_t kMaxDraftHelloBytes = 4096;

struct DraftHello {
  uint16_t version = 0;
  std::string key;
  std::string vocabulary;  // vocabulary_digest()
  int32_t num_rows = 0;    // tokens that its model has rows for
  std::string name;        // of model and host, for logs
};

// What a draft must know to serve.
struct DraftTerms {
  int32_t target_vocab_size = 0;
  int32_t num_candidates = 0;
  int32_t longest_draft_len = 0;
  int32_t max_model_len = 0;
  int32_t max_rows = 0;
  int32_t blocks_per_sequence = 0;
  int32_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t max_num_seqs = 0;
  bool operator==(const DraftTerms&) const = default;
};

struct DraftWelcome {
  std::string refusal;  // a sentence; empty: welcome
  uint32_t epoch = 0;   // of all frames from here on
  DraftTerms terms;
};

Bytes encode(const DraftHello& hello);
// Nothing for what is no hello. Of another version than ours: its version alone.
std::optional<DraftHello> decode_draft_hello(const Bytes& bytes);

Bytes encode(const DraftWelcome& welcome);
// Throws Error for what is none, and for terms that nobody can serve by.
DraftWelcome decode_draft_welcome(const Bytes& bytes);

// The payload of a hello frame: microseconds of a step of one row, as the draft measured it; 0 = it
// did not.
Bytes encode_draft_speed(uint64_t step_us);
uint64_t decode_draft_speed(const Bytes& payload);

}  // namespace outrider
