// How long the drafts of the next round should be when many requests are in flight: a row more
// costs little while a step waits for memory and much once it computes, so the length that pays
// falls as the batch grows, down to 0. Plain values of what rounds have cost; no clock here. The
// coordinator measures, chooses and tells the planner; the ranks see the length in the plan only.
#pragma once

#include <cstdint>
#include <map>

namespace outrider {

// Seconds of a step by its rows, learned from the steps that happened. A number of rows that was
// seen less than twice, or not for a while, counts as a little cheaper than its neighbours
// suggest: so it is tried when it might pay, and found out.
class RowCosts {
 public:
  // num_rows >= 1. What disturbs a step makes it longer, so that shorter ones count more.
  void add(int32_t num_rows, double seconds);
  // 0 when nothing is known.
  double at(int32_t num_rows) const;

 private:
  struct Bucket {
    int64_t num_seen = 0;
    int64_t last_seen = 0;  // number of the addition
    double rows = 0;        // averages
    double seconds = 0;
  };
  bool known(const Bucket& bucket) const;
  double guess(int32_t num_rows) const;

  // Neighbouring numbers of rows share a bucket, 8 to a doubling.
  std::map<int32_t, Bucket> buckets_;
  int64_t num_added_ = 0;
};

struct DraftCosts {
  RowCosts steps;        // of the target, without the wait for drafts
  double draft_s = 0;     // wait for one draft token, all sequences at once
  double acceptance = 0;  // chance that a draft token stands, when those before it do
};

// The length in 0 .. max_draft_len with the most tokens per second for num_sequences sequences of
// one committed row each: expected (1 - a^(k+1)) / (1 - a) tokens (Leviathan et al., arXiv
// 2211.17192, Eq. 1) by the time of n (k + 1) rows and k draft tokens. The shorter one in a tie.
int32_t best_draft_len(const DraftCosts& costs, int32_t num_sequences, int32_t max_draft_len);

class DraftLength {
 public:
  explicit DraftLength(int32_t max_draft_len) : max_draft_len_(max_draft_len) {}

  // A round that computed no prompts.
  void note_round(int32_t num_rows, double seconds);
  // All blocks of draft_len tokens were there after so long.
  void note_wait(int32_t draft_len, double seconds);
  void note_verdict(int32_t num_drafted, int32_t num_accepted);

  // One sequence alone gets max_draft_len: that length was asked for. So do models whose steps are
  // so short that a round's time is not theirs.
  int32_t choose(int32_t num_sequences) const;

 private:
  const int32_t max_draft_len_;
  DraftCosts costs_;
  // Decaying sums; they begin as if some tokens had been judged, most of them well.
  double num_examined_ = 10;
  double num_accepted_ = 7.5;
  int64_t num_rounds_undrafted_ = 0;
};

}  // namespace outrider
