// A model for simulations that check everything: a language of few words in which the next one
// depends on the whole text, read through a paged KV memory. A wrong block table, position or
// rollback gives other words, or is noticed where a row reads what was not computed for it. The
// draft's form says the same words as often as it is told, else likely other ones.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/forward/model.h"
#include "runtime/base/numbers/rng.h"

namespace outrider::test {

struct ToyLaw {
  static constexpr int32_t kVocabSize = 47;  // a prime: the words of a row are distinct

  uint64_t seed = 1;
  uint32_t agreement_permille = 700;  // of the draft's rows

  // Of the text so far.
  uint64_t next(uint64_t state, int32_t token) const {
    return mix_seed(state ^ seed, static_cast<uint64_t>(token));
  }
  struct Words {
    std::array<int32_t, 4> kept;   // the target says one of these, the first is its favourite
    std::array<int32_t, 4> other;  // only a draft says them
    bool agrees = false;
  };
  Words words(uint64_t state) const;
};

// Of the row after that text, of the tokens from `first` on.
void toy_logits(
    const ToyLaw& law, bool is_draft, uint64_t state, std::span<float> row, int32_t first = 0);

class ToyModel final : public Model {
 public:
  struct Options {
    ToyLaw law;
    bool is_draft = false;
    bool is_device = false;  // rank 0 may turn to other things while it computes
    int64_t step_ns = 0;
    int64_t row_ns = 0;
    int64_t jitter_ns = 0;      // at most, by the step's number
    bool clears_blocks = true;  // false: broken on purpose
    int32_t max_positions = 256;
  };
  ToyModel(const Options& options, int rank, int num_ranks, const ModelOptions& sizes);

  void begin(const Batch& batch) override;
  std::optional<JobClock::time_point> advance() override;
  std::span<const float> finish() override;
  void clear_blocks(std::span<const int32_t> blocks) override;
  void copy_block(int32_t from, int32_t to) override;
  void poison_blocks(std::span<const int32_t> blocks) override;
  void poison_position(int32_t block, int32_t slot) override;

  // What the step takes that has just begun.
  int64_t step_ns(size_t num_rows) const;
  // The first row that read what was not computed for it; empty when there was none.
  const std::string& fault() const { return fault_; }

 private:
  struct Slot {
    int32_t position = -1;
    int32_t token = -1;
    uint64_t state = 0;  // of the text up to here: tells whose KV this is
    bool is_nan = false;
  };
  // Where a sequence's rows stand.
  struct Reader {
    int32_t position = -1;
    uint64_t state = 0;
    bool reads_nan = false;
  };
  Slot& slot(std::span<const int32_t> table, int32_t position);
  Reader read(std::span<const int32_t> table, int32_t position);

  const Options toy_;
  std::vector<Slot> slots_;
  std::vector<float> logits_;
  size_t num_logits_ = 0;
  uint64_t num_steps_ = 0;
  int64_t end_ns_ = 0;
  std::string fault_;
};

}  // namespace outrider::test
