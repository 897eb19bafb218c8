// See toy_model.h.
#include "tests/simulation/toy_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "runtime/base/error.h"

namespace outrider::test {
namespace {

constexpr float kNeverSaid = -100.0f;
constexpr std::array<float, 4> kTargetLogits = {1.0f, 0.6f, 0.3f, 0.0f};

ModelConfig toy_config(int32_t max_positions) {
  ModelConfig config;
  config.model_type = "toy";
  config.n_layers = 1;
  config.hidden_dim = 128;
  config.n_heads = 64;
  config.n_kv_heads = 8;
  config.head_dim = 2;
  config.ffn_dim = 512;
  config.vocab_size = ToyLaw::kVocabSize;
  config.max_positions = max_positions;
  return config;
}

}  // namespace

ToyLaw::Words ToyLaw::words(uint64_t state) const {
  const uint64_t bits = mix_seed(state, seed);
  const auto first = static_cast<int32_t>(bits % kVocabSize);
  const auto stride = static_cast<int32_t>((bits >> 16) % (kVocabSize - 1)) + 1;
  Words words;
  for (int32_t i = 0; i < 4; ++i) {
    words.kept[static_cast<size_t>(i)] = (first + i * stride) % kVocabSize;
    words.other[static_cast<size_t>(i)] = (first + (i + 4) * stride) % kVocabSize;
  }
  words.agrees = (bits >> 32) % 1000 < agreement_permille;
  return words;
}

void toy_logits(
    const ToyLaw& law, bool is_draft, uint64_t state, std::span<float> row, int32_t first) {
  std::ranges::fill(row, kNeverSaid);
  const auto put = [&](int32_t token, float logit) {
    if (token >= first && token - first < std::ssize(row))
      row[static_cast<size_t>(token - first)] = logit;
  };
  const ToyLaw::Words words = law.words(state);
  for (size_t i = 0; i < words.kept.size(); ++i) {
    if (!is_draft || words.agrees) put(words.kept[i], kTargetLogits[i]);
  }
  for (size_t i = 0; is_draft && i < words.other.size(); ++i) {
    if (!words.agrees && i > 0) put(words.kept[i], kTargetLogits[i]);
    put(words.other[i], words.agrees ? -1.0f : kTargetLogits[i]);
  }
}

ToyModel::ToyModel(const Options& options, int rank, int num_ranks, const ModelOptions& sizes)
    : Model(toy_config(options.max_positions),
            shard_model(toy_config(options.max_positions), rank, num_ranks),
            sizes),
      toy_(options),
      slots_(static_cast<size_t>(sizes.num_blocks) * static_cast<size_t>(sizes.block_size)) {}

int64_t ToyModel::step_ns(size_t num_rows) const {
  const int64_t jitter = toy_.jitter_ns == 0
                             ? 0
                             : static_cast<int64_t>(mix_seed(toy_.law.seed, num_steps_) %
                                                    static_cast<uint64_t>(toy_.jitter_ns));
  return toy_.step_ns + toy_.row_ns * static_cast<int64_t>(num_rows) + jitter;
}

ToyModel::Slot& ToyModel::slot(std::span<const int32_t> table, int32_t position) {
  const int32_t block = table[static_cast<size_t>(position / options_.block_size)];
  return slots_[static_cast<size_t>(block * options_.block_size + position % options_.block_size)];
}

// All KV before that position. NaN spreads through what is masked, too: the block's other slots.
ToyModel::Reader ToyModel::read(std::span<const int32_t> table, int32_t position) {
  Reader reader{position, 0, false};
  const int32_t num_slots = std::min((position / options_.block_size + 1) * options_.block_size,
                                     static_cast<int32_t>(table.size()) * options_.block_size);
  for (int32_t p = 0; p < num_slots; ++p) {
    const Slot& one = slot(table, p);
    reader.reads_nan = reader.reads_nan || one.is_nan;
    if (p >= position) continue;
    reader.state = toy_.law.next(reader.state, one.token);
    const bool is_right = one.position == p && one.state == reader.state;
    if (!is_right && !reader.reads_nan && fault_.empty())
      fault_ = fmt::format("KV of position {} was not computed for the row that reads it", p);
  }
  return reader;
}

void ToyModel::begin(const Batch& batch) {
  check_batch(batch);
  const auto width = static_cast<size_t>(shard_.vocab.size());
  num_logits_ = batch.logit_rows.size() * width;
  if (logits_.size() < num_logits_) logits_.resize(num_logits_);
  Reader reader;
  size_t logit_row = 0;
  for (size_t row = 0; row < batch.tokens.size(); ++row) {
    const auto sequence = static_cast<size_t>(batch.sequence_of_row[row]);
    const std::span<const int32_t> table = batch.block_tables[sequence];
    const bool goes_on = row > 0 && batch.sequence_of_row[row - 1] == batch.sequence_of_row[row] &&
                         batch.positions[row] == reader.position &&
                         batch.positions[row] % options_.block_size != 0;
    if (!goes_on) reader = read(table, batch.positions[row]);
    reader.state = toy_.law.next(reader.state, batch.tokens[row]);
    slot(table, reader.position) = {
        reader.position, batch.tokens[row], reader.state, reader.reads_nan};
    ++reader.position;
    if (logit_row == batch.logit_rows.size() ||
        batch.logit_rows[logit_row] != static_cast<int32_t>(row))
      continue;
    const std::span logits = std::span(logits_).subspan(logit_row++ * width, width);
    if (reader.reads_nan) {
      std::ranges::fill(logits, std::numeric_limits<float>::quiet_NaN());
    } else {
      toy_logits(
          toy_.law, toy_.is_draft, reader.state, logits, static_cast<int32_t>(shard_.vocab.begin));
    }
  }
  ++num_steps_;
  end_ns_ = JobClock::now_ns() + step_ns(batch.tokens.size());
}

std::optional<JobClock::time_point> ToyModel::advance() {
  const JobClock::time_point end{std::chrono::nanoseconds(end_ns_)};
  if (toy_.is_device && JobClock::now() < end) return end;
  JobClock::sleep_until(end);
  return std::nullopt;
}

std::span<const float> ToyModel::finish() {
  JobClock::sleep_until(JobClock::time_point{std::chrono::nanoseconds(end_ns_)});
  return std::span(logits_).first(num_logits_);
}

void ToyModel::clear_blocks(std::span<const int32_t> blocks) {
  const auto size = static_cast<size_t>(options_.block_size);
  for (const int32_t block : blocks) {
    for (size_t i = 0; i < size && toy_.clears_blocks; ++i)
      slots_[static_cast<size_t>(block) * size + i] = {};
  }
}

void ToyModel::copy_block(int32_t from, int32_t to) {
  const auto size = static_cast<size_t>(options_.block_size);
  for (size_t i = 0; i < size; ++i)
    slots_[static_cast<size_t>(to) * size + i] = slots_[static_cast<size_t>(from) * size + i];
}

void ToyModel::poison_blocks(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    for (int32_t i = 0; i < options_.block_size; ++i) poison_position(block, i);
  }
}

void ToyModel::poison_position(int32_t block, int32_t slot) {
  slots_[static_cast<size_t>(block * options_.block_size + slot)].is_nan = true;
}

}  // namespace outrider::test
