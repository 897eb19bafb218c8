// See chain.h.
#include "models/gpu/chain.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/numbers/exact_math.h"

namespace outrider {
namespace {

ModelOptions of_few_rows(ModelOptions options) {
  options.max_rows = std::min(options.max_rows, kMostChainedRows);
  options.max_logit_rows = std::min(options.max_logit_rows, kMostChainedRows);
  return options;
}

// One row behind each row whose token was chosen; which one it was only the device knows.
Batch rows_behind(const Batch& first) {
  Batch batch;
  for (const int32_t row : first.logit_rows) {
    const auto at = static_cast<size_t>(row);
    const auto sequence = static_cast<size_t>(first.sequence_of_row[at]);
    batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.sequence_of_row.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.tokens.push_back(0);
    batch.positions.push_back(first.positions[at]);
    batch.block_tables.push_back(first.block_tables[sequence]);
  }
  return batch;
}

}  // namespace

GpuChain::GpuChain(gpu::Device& device,
                   const ModelConfig& config,
                   const ModelShard& shard,
                   const ModelOptions& options,
                   int32_t max_positions)
    : tasks_here_(device, sizeof(Tasks)),
      tasks_there_(device, sizeof(Tasks)),
      answers_here_(device, sizeof(Answers)),
      answers_there_(device, sizeof(Answers)),
      candidates_(device,
                  sizeof(uint64_t) * kMostChainedRows *
                      static_cast<size_t>(gpu::top_candidates(
                          static_cast<int32_t>(shard.vocab.size()), kMostLikeliest))) {
  for (int32_t i = 0; i < kMostChainedSteps; ++i) {
    steps_.emplace_back(device, config, shard, of_few_rows(options), max_positions);
  }
}

std::vector<LaunchSizes> GpuChain::fill(const ChainedSteps& chain,
                                        const float* logits,
                                        int64_t stride) {
  num_steps_ = chain.num_steps;
  num_rows_ = static_cast<int32_t>(chain.choices.size());
  num_tokens_ = chain.num_tokens;
  OUTRIDER_CHECK(num_steps_ >= 1 && num_steps_ <= kMostChainedSteps);
  OUTRIDER_CHECK(std::ssize(chain.first->tokens) <= kMostChainedRows);
  OUTRIDER_CHECK(std::ssize(chain.first->logit_rows) == num_rows_);
  std::vector<LaunchSizes> sizes = {steps_[0].fill(*chain.first)};
  Batch behind = rows_behind(*chain.first);
  for (int32_t step = 1; step < num_steps_; ++step) {
    for (int32_t& position : behind.positions) ++position;
    sizes.push_back(steps_[static_cast<size_t>(step)].fill(behind));
  }
  wants_likeliest_ = false;
  num_likeliest_.clear();
  for (int32_t row = 0; row < num_rows_; ++row) {
    const TokenChoice& choice = chain.choices[static_cast<size_t>(row)];
    OUTRIDER_CHECK(choice.num_likeliest >= 0 && choice.num_likeliest <= kMostLikeliest);
    num_likeliest_.push_back(std::min(choice.num_likeliest, num_tokens_));
    wants_likeliest_ = wants_likeliest_ || choice.num_likeliest > 0;
    tasks_here_.as<Tasks>()->rows[row] = {.logits = logits + row * stride,
                                          .size = num_tokens_,
                                          .inverse_temperature = choice.inverse_temperature};
    for (int32_t step = 0; step < num_steps_; ++step) fill_tasks(step, row, choice);
  }
  return sizes;
}

void GpuChain::fill_tasks(int32_t step, int32_t row, const TokenChoice& choice) {
  constexpr float kNoCeiling = std::numeric_limits<float>::infinity();
  auto* const tasks = tasks_here_.as<Tasks>();
  auto* const answers = answers_there_.as<Answers>();
  NoiseKey noise = choice.noise;
  noise.position += static_cast<uint32_t>(step);
  tasks->bests[step][row] = {.row = row,
                             .draws = choice.draws ? 1 : 0,
                             .noise = noise,
                             .cut = kMasked,
                             .ceiling = kNoCeiling,
                             .key = &answers->words[step][row][0],
                             .bad = &answers->words[step][row][1]};
  TopAnswer& top = answers->tops[step][row];
  tasks->tops[step][row] = {.row = row,
                            .n = std::max(1, num_likeliest_[static_cast<size_t>(row)]),
                            .ceiling = kNoCeiling,
                            .candidates = candidates_.as<uint64_t>() +
                                          row * gpu::top_candidates(num_tokens_, kMostLikeliest),
                            .keys = top.keys,
                            .flipped_last = &top.words[0],
                            .num_last = &top.words[1],
                            .bad = &top.words[2]};
}

void GpuChain::upload(gpu::Stream& stream) {
  for (int32_t i = 0; i < num_steps_; ++i) steps_[static_cast<size_t>(i)].upload(stream);
  stream.upload(tasks_there_.data(), tasks_here_.as<Tasks>(), sizeof(Tasks));
  stream.fill(answers_there_.data(), 0, answer_bytes());
}

gpu::RowTasks GpuChain::choices(int32_t index) const {
  const auto* const tasks = tasks_there_.as<Tasks>();
  return {.rows = tasks->rows,
          .bests = tasks->bests[index],
          .tops = tasks->tops[index],
          .num_bests = num_rows_,
          .num_tops = wants_likeliest_ ? num_rows_ : 0,
          .most_tokens = num_tokens_};
}

gpu::TakeTokensArgs GpuChain::next_tokens(int32_t index) const {
  return {.words = answers_there_.as<Answers>()->words[index][0],
          .count = num_rows_,
          .tokens = steps_[static_cast<size_t>(index) + 1].tokens_on_device()};
}

void GpuChain::download(gpu::Stream& stream) {
  stream.download(answers_here_.as<Answers>(), answers_there_.data(), answer_bytes());
}

std::vector<ChosenToken> GpuChain::chosen() const {
  std::vector<ChosenToken> all;
  const auto* const answers = answers_here_.as<Answers>();
  for (int32_t step = 0; step < num_steps_; ++step) {
    for (int32_t row = 0; row < num_rows_; ++row) {
      const uint64_t* const words = answers->words[step][row];
      ChosenToken& chosen = all.emplace_back();
      chosen.key = words[0];
      chosen.is_bad = words[1] != 0;
      const uint64_t* const keys = answers->tops[step][row].keys;
      chosen.likeliest.assign(keys, keys + num_likeliest_[static_cast<size_t>(row)]);
      std::sort(chosen.likeliest.begin(), chosen.likeliest.end(), std::greater<uint64_t>());
    }
  }
  return all;
}

}  // namespace outrider
