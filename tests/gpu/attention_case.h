// A random ragged batch with paged keys and values, for tests of attention: what it is told to be,
// its attention in double precision, and a run of it on the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "runtime/ops/gpu/attention_plan.h"
#include "runtime/ops/gpu/tiles.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {

// Rows of one sequence that a step has: positions first .. first + count - 1.
struct RunOfRows {
  int32_t sequence = 0;
  int32_t first = 0;
  int32_t count = 1;
};

struct AttentionShape {
  Type type = Type::kBF16;
  int32_t n_kv_heads = 2;
  int32_t group = 4;
  int32_t head_dim = 64;
  int32_t block_size = 16;
  int32_t window = 0;
  float softcap = 0.0f;
  bool alibi = false;
  bool has_sinks = false;
  bool is_latent = false;  // values are the keys
  float slope(int32_t head) const { return 0.02f * static_cast<float>(head + 1); }
  float sink(int32_t head) const { return 2.0f * static_cast<float>(head); }
  int32_t n_heads() const { return n_kv_heads * group; }
  int32_t width() const { return n_heads() * head_dim; }
};

// Sequences of the given lengths in shuffled blocks; every slot that no sequence has written is
// NaN.
class AttentionCase {
 public:
  AttentionCase(const AttentionShape& shape, const std::vector<int32_t>& lengths, unsigned seed)
      : shape_(shape), lengths_(lengths), random_(seed) {
    int32_t num_blocks = 0;
    for (const int32_t length : lengths) {
      num_blocks += (length + shape.block_size - 1) / shape.block_size;
      stride_ = std::max(stride_, (length + shape.block_size - 1) / shape.block_size);
    }
    std::vector<int32_t> order(static_cast<size_t>(num_blocks + 1));  // one that nobody has
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    tables_.assign(lengths.size() * static_cast<size_t>(stride_), -1);
    size_t next = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int32_t b = 0; b * shape.block_size < lengths[s]; ++b) {
        tables_[s * static_cast<size_t>(stride_) + static_cast<size_t>(b)] = order[next++];
      }
    }
    num_blocks_ = num_blocks + 1;
    const size_t page_bytes = static_cast<size_t>(num_blocks_ * shape.n_kv_heads) *
                              static_cast<size_t>(shape.block_size * shape.head_dim) *
                              type_bytes(shape.type);
    keys_ = DeviceArray<uint8_t>(*device_, page_bytes);
    values_ = DeviceArray<uint8_t>(*device_, page_bytes);
    keys_.poison();
    values_.poison();
    for (size_t s = 0; s < lengths.size(); ++s) write_sequence(static_cast<int32_t>(s));
    push_pages();
  }

  // The first `count` blocks of sequence `to` are those of `from`.
  void share_blocks(int32_t from, int32_t to, int32_t count) {
    for (int32_t b = 0; b < count; ++b) table(to)[b] = table(from)[b];
  }

  void put_nan(int32_t sequence, int32_t position) {
    for (int32_t head = 0; head < shape_.n_kv_heads; ++head) {
      for (int32_t d = 0; d < shape_.head_dim; ++d) {
        narrow(shape_.type, keys_.host(), at(sequence, head, position, d), NAN);
        narrow(shape_.type, values_.host(), at(sequence, head, position, d), NAN);
      }
    }
    push_pages();
  }

  // Query (sequence, position) is the same in whatever step it is asked.
  float query(int32_t sequence, int32_t position, int32_t head, int32_t d) const {
    std::minstd_rand random(
        static_cast<unsigned>(((sequence * 4099 + position) * 131 + head) * 521 + d * 7 + 12345));
    random.discard(3);
    return rounded(std::uniform_real_distribution<float>(-2.0f, 2.0f)(random), shape_.type);
  }

  struct Run {
    std::vector<float> rows;  // [rows, width]
    AttentionPlan plan;
    AttentionFold fold = AttentionFold::kNothing;
    bool padding_is_zero = true;  // of the output's inner dimension
  };
  struct Launch {
    int32_t rows_per_item = 0;  // 0: as the planner has it
    int32_t max_rows = 0;       // what is 0 is as the step needs it
    int32_t max_items = 0;
    int32_t max_splits = 0;
    int times = 1;
  };
  Run run(const std::vector<RunOfRows>& runs, const Launch& launch) const;
  Run run(const std::vector<RunOfRows>& runs) const { return run(runs, Launch{}); }
  // The same in double precision.
  std::vector<double> expected(const std::vector<RunOfRows>& runs) const;

  const AttentionShape& shape() const { return shape_; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

 private:
  int32_t* table(int32_t sequence) {
    return tables_.data() + static_cast<ptrdiff_t>(sequence) * stride_;
  }
  size_t at(int32_t sequence, int32_t head, int32_t position, int32_t d) const {
    const int32_t block =
        tables_[static_cast<size_t>(sequence * stride_ + position / shape_.block_size)];
    const int32_t slot =
        (block * shape_.n_kv_heads + head) * shape_.block_size + position % shape_.block_size;
    return static_cast<size_t>(slot) * static_cast<size_t>(shape_.head_dim) +
           static_cast<size_t>(d);
  }
  const DeviceArray<uint8_t>& values() const { return shape_.is_latent ? keys_ : values_; }
  // Queries, and the keys and values of the step's own positions.
  std::vector<std::span<std::byte>> written_by_step(const std::vector<int32_t>& positions,
                                                    const std::vector<int32_t>& sequences,
                                                    const DeviceArray<uint8_t>& queries) const {
    std::vector<std::span<std::byte>> memory = {queries.bytes()};
    const size_t element = type_bytes(shape_.type);
    const size_t slot_bytes = static_cast<size_t>(shape_.head_dim) * element;
    for (size_t row = 0; row < positions.size(); ++row) {
      for (int32_t head = 0; head < shape_.n_kv_heads; ++head) {
        const size_t first = at(sequences[row], head, positions[row], 0) * element;
        memory.push_back(keys_.bytes().subspan(first, slot_bytes));
        if (!shape_.is_latent) memory.push_back(values_.bytes().subspan(first, slot_bytes));
      }
    }
    return memory;
  }
  void push_pages() const {
    keys_.push();
    values_.push();
  }
  void write_sequence(int32_t sequence) {
    std::normal_distribution<float> normal;
    for (int32_t p = 0; p < lengths_[static_cast<size_t>(sequence)]; ++p) {
      for (int32_t head = 0; head < shape_.n_kv_heads; ++head) {
        for (int32_t d = 0; d < shape_.head_dim; ++d) {
          narrow(shape_.type, keys_.host(), at(sequence, head, p, d), normal(random_));
          narrow(shape_.type, values_.host(), at(sequence, head, p, d), normal(random_));
        }
      }
    }
  }

  AttentionShape shape_;
  std::vector<int32_t> lengths_;
  std::mt19937 random_;
  std::unique_ptr<Device> device_ = test_backend().open(0);
  int32_t stride_ = 1;
  int32_t num_blocks_ = 0;
  std::vector<int32_t> tables_;
  DeviceArray<uint8_t> keys_;
  DeviceArray<uint8_t> values_;
};

inline AttentionCase::Run AttentionCase::run(const std::vector<RunOfRows>& runs,
                                             const Launch& launch) const {
  std::vector<int32_t> of_rows;
  std::vector<int32_t> sequences_of_rows;
  for (const RunOfRows& run : runs) {
    for (int32_t i = 0; i < run.count; ++i) {
      of_rows.push_back(run.first + i);
      sequences_of_rows.push_back(run.sequence);
    }
  }
  const auto num_rows = static_cast<int32_t>(of_rows.size());
  const int32_t max_rows = std::max(launch.max_rows, num_rows);
  const auto width = static_cast<size_t>(shape_.width());
  const size_t num_elements = static_cast<size_t>(max_rows) * width;
  DeviceArray<uint8_t> queries(*device_, num_elements * type_bytes(shape_.type));
  queries.poison();
  for (size_t i = 0; i < static_cast<size_t>(num_rows) * width; ++i) {
    const auto k = static_cast<int32_t>(i % width);
    const size_t row = i / width;
    const float value =
        query(sequences_of_rows[row], of_rows[row], k / shape_.head_dim, k % shape_.head_dim);
    narrow(shape_.type, queries.host(), i, value);
  }
  queries.push();
  Run result;
  DeviceArray<int32_t> positions(*device_, of_rows);
  DeviceArray<int32_t> sequences(*device_, sequences_of_rows);
  const DeviceArray<int32_t> tables(*device_, tables_);
  DeviceArray<AttentionItem> items(*device_, static_cast<size_t>(num_rows));
  const int32_t rows_per_item = launch.rows_per_item > 0
                                    ? launch.rows_per_item
                                    : rows_per_attention_item(shape_.group, shape_.head_dim);
  result.plan = plan_attention(
      {positions.span(), sequences.span()}, shape_.group, rows_per_item, items.span());
  items.push();
  DeviceArray<StepCounts> counts(*device_, 1);
  std::vector<float> of_heads;
  for (int32_t head = 0; head < shape_.n_heads(); ++head) of_heads.push_back(shape_.slope(head));
  const DeviceArray<float> slopes(*device_, of_heads);
  for (int32_t head = 0; head < shape_.n_heads(); ++head) {
    of_heads[static_cast<size_t>(head)] = shape_.sink(head);
  }
  const DeviceArray<float> sinks(*device_, of_heads);
  DeviceArray<float> out(*device_, activation_elements(max_rows, shape_.width()));
  AttentionArgs args = {.out = {out.device(), shape_.type, shape_.width()},
                        .queries = queries.device(),
                        .n_heads = shape_.n_heads(),
                        .scale = scale(),
                        .window = shape_.window,
                        .kv = {keys_.device(),
                               values().device(),
                               shape_.type,
                               num_blocks_,
                               shape_.n_kv_heads,
                               shape_.block_size,
                               shape_.head_dim},
                        .max_rows = max_rows,
                        .max_items = std::max(launch.max_items, result.plan.num_items),
                        .max_splits = std::max(launch.max_splits, result.plan.max_splits),
                        .step = {.counts = counts.device(),
                                 .positions = positions.device(),
                                 .sequence_of_row = sequences.device(),
                                 .block_tables = tables.device(),
                                 .table_stride = stride_,
                                 .attention_items = items.device()},
                        .softcap = shape_.softcap,
                        .slopes = shape_.alibi ? slopes.device() : nullptr,
                        .sinks = shape_.has_sinks ? sinks.device() : nullptr};
  result.fold = attention_scratch(args).fold;
  const OpTable& ops = test_backend().ops;
  DeviceArray<uint8_t> scratch(*device_, attention_scratch_bound(args));
  scratch.poison();
  args.scratch = scratch.device();
  const std::unique_ptr<Stream> stream = device_->make_stream(Priority::kNormal);
  // As a step runs: recorded before it is known what the step has.
  stream->begin_recording();
  ops.attention(*stream, args);
  const std::unique_ptr<Graph> graph = stream->end_recording();
  counts[0] = {.num_rows = num_rows, .num_attention_items = result.plan.num_items};
  counts.push();
  write_by_predecessor(written_by_step(of_rows, sequences_of_rows, queries));
  for (int i = 0; i < launch.times; ++i) {
    out.poison();
    stream->replay(*graph);
    stream->wait();
  }
  out.pull();
  for (int32_t row = 0; row < num_rows; ++row) {
    for (int32_t k = 0; k < shape_.width(); ++k) {
      result.rows.push_back(widen(shape_.type, out.host(), place(args.out, row, k)));
    }
    for (int32_t k = shape_.width(); k % kTileInner != 0 && shape_.type != Type::kF32; ++k) {
      result.padding_is_zero &= widen(shape_.type, out.host(), place(args.out, row, k)) == 0.0f;
    }
  }
  return result;
}

inline std::vector<double> AttentionCase::expected(const std::vector<RunOfRows>& runs) const {
  std::vector<double> out;
  for (const RunOfRows& run : runs) {
    for (int32_t p = run.first; p < run.first + run.count; ++p) {
      const int32_t begin = shape_.window > 0 ? std::max(0, p - shape_.window + 1) : 0;
      for (int32_t head = 0; head < shape_.n_heads(); ++head) {
        const int32_t kv_head = head / shape_.group;
        std::vector<double> asked;
        for (int32_t d = 0; d < shape_.head_dim; ++d) {
          asked.push_back(query(run.sequence, p, head, d));
        }
        std::vector<double> weights;
        double sum = shape_.has_sinks ? std::exp(shape_.sink(head)) : 0.0;
        for (int32_t t = begin; t <= p; ++t) {
          double score = 0.0;
          for (int32_t d = 0; d < shape_.head_dim; ++d) {
            score += asked[static_cast<size_t>(d)] *
                     widen(shape_.type, keys_.host(), at(run.sequence, kv_head, t, d));
          }
          score *= scale();
          if (shape_.softcap != 0.0f) score = shape_.softcap * std::tanh(score / shape_.softcap);
          if (shape_.alibi) score += shape_.slope(head) * (t - p);
          weights.push_back(std::exp(score));
          sum += weights.back();
        }
        for (int32_t d = 0; d < shape_.head_dim; ++d) {
          double value = 0.0;
          for (int32_t t = begin; t <= p; ++t) {
            value += weights[static_cast<size_t>(t - begin)] *
                     widen(shape_.type, values().host(), at(run.sequence, kv_head, t, d));
          }
          out.push_back(value / sum);
        }
      }
    }
  }
  return out;
}

}  // namespace outrider::gpu
