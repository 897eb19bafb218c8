// Promise P3: same text on any number of ranks under numerics strict, 2,000 and more sequences over
// all drafts, draft lengths, batch sizes and amounts of memory.
#include <gtest/gtest.h>

#include "tests/ranks/strict_text.h"

namespace outrider::test {
namespace {

TEST(StrictTextSlow, TwoThousandSequences) {
  StrictComparison comparison(strict_asks(200, 32));
  const int draft_lens[] = {1, 4, 16, 8, 2};
  int i = 0;
  for (const int num_targets : {1, 2, 4, 8}) {
    comparison.expect_same({.num_targets = num_targets, .max_num_seqs = num_targets == 1 ? 16 : 7});
    comparison.expect_same({.num_targets = num_targets, .draft_len = draft_lens[i++ % 5]});
    comparison.expect_same({.num_targets = num_targets, .draft_len = 3, .tight = true}, 60);
    for (const char* method : {"ngram", "bigram"}) {
      comparison.expect_same(
          {.num_targets = num_targets, .draft_len = 2, .method = method, .max_num_seqs = 32}, 60);
    }
    comparison.expect_same(
        {.num_targets = num_targets, .draft_len = draft_lens[i++ % 5], .max_num_seqs = 2}, 40);
  }
  EXPECT_GE(comparison.num_compared(), 2000u);
  comparison.report();
}

}  // namespace
}  // namespace outrider::test
