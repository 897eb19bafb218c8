// What sampling wants to know of rows of logits, as questions: the one door to everything as long
// as the vocabulary. Logits stay where the forward pass left them (host memory, or a device's), and
// a scanner answers from there with integers and a few floats: bit for bit the same ones, whoever
// answers, because the arithmetic is that of runtime/base/numbers/exact_math.h and rng.h, and what
// is put together is put together by integer addition and maximum.
//
// All questions of a step are asked at once, for all rows of the round, so that a device needs one
// trip (upload, one launch per kind of question, download). Trips of verify(), whatever the number
// of sequences: 1 when some row has edits (bias, penalties, min_tokens: their raw values), 1 for
// the best tokens, 1 for what drafts are judged by, 1 for the draws that had to wait; filters add 1
// (narrow), or 4 each (wide) and 1 for typical_p; log-probabilities add 3. So without filters,
// edits and log-probabilities: 1 for greedy, coupled and plain rows, 3 for the standard and block
// rules. propose_ranked(): the same edits and filters, 1 for the best tokens, at most 1 more.
//
// Not shared between threads: one scanner for each rank's sampling.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "scheduler/rows/keep_order.h"
#include "scheduler/rows/row_view.h"

namespace outrider {

// Raw logits of the same tokens in neighbouring rows.
struct ReadQuestion {
  LogitsAddress logits;  // of the first row
  int64_t stride = 0;    // from row to row, in logits
  int32_t num_rows = 1;
  std::span<const int32_t> index;  // into a row
  std::span<float> values;         // out: [num_rows, index.size()]
};

// In what follows `row` is the place of the row among those held. A kind's questions come in
// ascending order of rows; several may name one row.

// The best token: pack_key of its scaled value, or, when `draws`, the key of the best noisy one as
// DrawQuestion has it, without a cut.
struct ScanQuestion {
  int32_t row = 0;
  bool draws = false;
  NoiseKey noise;
  uint64_t key = 0;  // out: 0 for an empty row; anything for a bad one
  bool bad = false;  // out: NaN or infinity among the raw logits
};

// Of the tokens whose scaled value lies between cut and ceiling: sum of fixed_weight(scaled - max),
// and when wanted that of fixed_moment(scaled - max).
struct SumQuestion {
  int32_t row = 0;
  float max = 0.0f;
  float cut = kMasked;
  float ceiling = kNoCeiling;
  bool wants_moment = false;
  uint64_t mass = 0;    // out
  uint64_t moment = 0;  // out
};

// The highest key of scaled + Gumbel noise between cut and ceiling. Masked tokens take part with
// -infinity, so that a wholly masked row still names its lowest token.
struct DrawQuestion {
  int32_t row = 0;
  float cut = kMasked;
  float ceiling = kNoCeiling;
  NoiseKey noise;
  std::span<const int32_t> without;  // ascending indices that are masked too
  uint64_t key_to_beat = 0;          // of a token elsewhere: the higher of both is the answer
  uint64_t key = 0;                  // out: key_to_beat for an empty row
};

// The best keys (pack_key of the scaled value), best first; maybe without those of values more than
// `within` below the best.
struct TopQuestion {
  int32_t row = 0;
  float ceiling = kNoCeiling;
  float within = std::numeric_limits<float>::infinity();
  bool counts_last = false;  // wants num_last
  std::span<uint64_t> keys;  // in: memory for the n that are wanted; out: what is filled of it,
                             // less in a shorter row, anything in a bad one
  bool bad = false;          // out: as in ScanQuestion
  uint32_t num_last = 0;  // out: tokens whose value equals the n-th; 0 when there are fewer than n
};

// How many tokens (or which mass of them) lie in each of 256 bands of distance from a reference:
// one digit of a radix selection. Only tokens with scaled >= cut, and from the second digit on only
// those whose distance has the same leading digits as `farthest`.
struct BandQuestion {
  int32_t row = 0;
  float cut = kMasked;
  KeepOrder order;
  bool by_mass = false;
  int digit = 0;              // 0 .. 3, the highest first, each after the one before it
  uint32_t farthest = 0;      // the digits found so far, leading
  std::span<uint64_t> bands;  // out: [kNumBands]
  struct Entry {
    uint32_t distance;
    uint64_t amount;
  };
  // The host scanner's, by place among the questions: between a question's digits it answers no
  // other bands.
  std::vector<Entry>* inside = nullptr;
};
inline constexpr int kNumDigits = 4;
inline constexpr size_t kNumBands = 256;

// Tokens that come before (value, token) in the order of rank: higher value, then lower id.
struct RankQuestion {
  int32_t row = 0;
  float value = 0.0f;
  int32_t token = 0;
  uint64_t num_before = 0;  // out
};

struct RowQuestions {
  std::vector<ReadQuestion> reads;
  std::vector<ScanQuestion> scans;
  std::vector<SumQuestion> sums;
  std::vector<DrawQuestion> draws;
  std::vector<TopQuestion> tops;
  std::vector<BandQuestion> bands;
  std::vector<RankQuestion> ranks;
  bool empty() const {
    return reads.empty() && scans.empty() && sums.empty() && draws.empty() && tops.empty() &&
           bands.empty() && ranks.empty();
  }
};

class RowScanner {
 public:
  virtual ~RowScanner() = default;
  // The rows that questions name, until the next call; they and what they point to must live as
  // long. A device takes over edits and masks here, once.
  virtual void hold(std::span<const RowView> rows) = 0;
  // One trip; none when there are no questions.
  virtual void answer(RowQuestions& questions) = 0;
};

}  // namespace outrider
