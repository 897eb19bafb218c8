// Who is chosen, as runtime/ops/cpu/experts.cpp decides it: scores, a correction, groups, the best
// one by one with ties to the lower id, weights. A warp per row, each lane with every 32nd expert.
#include <limits>

#include "runtime/ops/cuda/experts/piece.h"
#include "runtime/ops/cuda/exponential.h"

namespace outrider::gpu {
namespace {

using ops::ExpertChoice;

constexpr int32_t kRowsPerBlock = 4;
constexpr uint32_t kThreads = 32 * kRowsPerBlock;

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kWorst =
    -1e30f;  // what is not a number, yet must be taken when nothing else is left

struct Best {
  float value;
  int32_t index;
};

// The lowest index of the largest value, in all lanes; its lane makes that value kNever.
OUTRIDER_DEVICE int32_t take_best(float* values, int32_t count) {
  const auto lane = static_cast<int32_t>(lane_id());
  Best best = {kNever, 0};
  for (int32_t i = lane; i < count; i += 32) {
    if (values[i] > best.value) best = {values[i], i};
  }
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const Best other = {shuffle_xor(best.value, mask), shuffle_xor(best.index, mask)};
    const bool is_better =
        other.value > best.value || (other.value == best.value && other.index < best.index);
    if (is_better) best = other;
  }
  if (best.index % 32 == lane) values[best.index] = kNever;
  return best.index;
}

OUTRIDER_DEVICE void sigmoid_of(float* x, int32_t count) {
  for (auto i = static_cast<int32_t>(lane_id()); i < count; i += 32) x[i] = sigmoid(x[i]);
}

OUTRIDER_DEVICE void softmax_of(float* x, int32_t count) {
  const auto lane = static_cast<int32_t>(lane_id());
  float largest = kNever;
  for (int32_t i = lane; i < count; i += 32) largest = x[i] > largest ? x[i] : largest;
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const float other = shuffle_xor(largest, mask);
    largest = other > largest ? other : largest;
  }
  float sum = 0.0f;
  for (int32_t i = lane; i < count; i += 32) {
    x[i] = exponential_as_on_cpu(exact_add(x[i], -largest));
    sum = exact_add(sum, x[i]);
  }
  for (uint32_t mask = 16; mask > 0; mask /= 2) sum = exact_add(sum, shuffle_xor(sum, mask));
  for (int32_t i = lane; i < count; i += 32) x[i] = divide(x[i], sum);
}

// Leaves the values of the chosen groups. sums: [groups], scratch; of each group its lane's.
OUTRIDER_DEVICE void choose_groups(float* values, float* sums, const ExpertChoice& choice) {
  const auto lane = static_cast<int32_t>(lane_id());
  const int32_t size = choice.count / choice.groups;
  sync_warp();
  for (int32_t g = lane; g < choice.groups; g += 32) {
    float first = kNever;
    float second = kNever;
    for (int32_t i = g * size; i < (g + 1) * size; ++i) {
      const float value = values[i];
      const float lower = value < first ? value : first;
      second = lower > second ? lower : second;
      first = value > first ? value : first;
    }
    sums[g] = exact_add(first, second);
  }
  for (int32_t i = 0; i < choice.chosen_groups; ++i) take_best(sums, choice.groups);
  sync_warp();
  for (int32_t i = lane; i < choice.count; i += 32) {
    if (sums[i / size] != kNever) values[i] = kNever;  // not taken
  }
  sync_warp();
}

// Which of this lane's experts are chosen: bit i says expert lane + 32 i.
OUTRIDER_DEVICE uint32_t choose(const ExpertChoice& choice,
                                float* scores,
                                float* values,
                                float* sums) {
  const auto lane = static_cast<int32_t>(lane_id());
  if (choice.sigmoid) {
    sigmoid_of(scores, choice.count);
  } else {
    softmax_of(scores, choice.count);
  }
  for (int32_t i = lane; i < choice.count; i += 32) {
    const float value =
        choice.correction == nullptr ? scores[i] : exact_add(scores[i], choice.correction[i]);
    values[i] = value > kWorst ? value : kWorst;
  }
  if (choice.groups > 1) choose_groups(values, sums, choice);
  uint32_t chosen = 0;
  for (int32_t i = 0; i < choice.per_row; ++i) {
    const int32_t best = take_best(values, choice.count);
    if (best % 32 == lane) chosen |= 1u << (best / 32);
  }
  return chosen;
}

// Ids ascending, and weights; in_order: [per_row], scratch.
OUTRIDER_DEVICE void store_choice(
    const RouteArgs& args, int32_t row, uint32_t chosen, const float* scores, float* in_order) {
  const ExpertChoice& choice = args.choice;
  const auto lane = static_cast<int32_t>(lane_id());
  int32_t* const ids = args.to.ids + row * choice.per_row;
  float* const weights = args.to.weights + row * choice.per_row;
  sync_warp();
  int32_t before = 0;
  for (int32_t i = 0; 32 * i < choice.count; ++i) {
    const bool is_mine = (chosen >> i & 1) != 0;
    const uint32_t votes = ballot(is_mine);
    if (is_mine) {
      const int32_t place = before + count_bits(votes & ((1u << lane) - 1));
      ids[place] = 32 * i + lane;
      in_order[place] = scores[32 * i + lane];
    }
    before += count_bits(votes);
  }
  sync_warp();
  float sum = 0.0f;
  for (int32_t i = 0; i < choice.per_row; ++i) sum = exact_add(sum, in_order[i]);
  const float divisor = choice.normalised ? exact_add(sum, 1e-20f) : 1.0f;  // sigmoids may all be 0
  for (int32_t i = lane; i < choice.per_row; i += 32) {
    const float weight = exact_mul(divide(in_order[i], divisor), choice.scale);
    const float* const scale = args.expert_scale;
    weights[i] = scale == nullptr ? weight : exact_mul(weight, scale[ids[i]]);
  }
}

OUTRIDER_KERNEL(kThreads) void choose_for_rows(RouteArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const int32_t row =
      static_cast<int32_t>(block_id().x) * kRowsPerBlock + static_cast<int32_t>(warp_id());
  if (row >= rows_of_piece(args.to, args.step)) return;
  const auto lane = static_cast<int32_t>(lane_id());
  const int32_t count = args.choice.count;
  float* const scores = shared_memory<float>() + static_cast<int32_t>(warp_id()) * 3 * count;
  float* const values = scores + count;
  float* const sums = values + count;
  const float* const logits = args.logits + row * args.num_logits;
  for (int32_t i = lane; i < count; i += 32) scores[i] = logits[i];
  const uint32_t chosen = choose(args.choice, scores, values, sums);
  store_choice(args, row, chosen, scores, sums);
}

}  // namespace

void choose_experts(Stream& stream, const RouteArgs& args) {
  const auto count = static_cast<size_t>(args.choice.count);
  launch(stream,
         choose_for_rows,
         {.grid = {static_cast<uint32_t>(whole_tiles(args.to.max_rows, kRowsPerBlock))},
          .threads = kThreads,
          .shared_bytes = kRowsPerBlock * 3 * count * sizeof(float),
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
