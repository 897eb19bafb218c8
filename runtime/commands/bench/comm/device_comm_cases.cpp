// See device_comm_cases.h.
#include "runtime/commands/bench/comm/device_comm_cases.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"

namespace outrider {
namespace {

constexpr int kSharedMember = -1;  // whose values all ranks have alike

float value_of(uint64_t turn, int member, size_t place) {
  const uint64_t of_member = mix_seed(turn, static_cast<uint64_t>(member + 1));
  return static_cast<float>(static_cast<int32_t>(mix_seed(of_member, place) >> 52) - 2048);
}

void fill(std::span<float> values, uint64_t turn, int member) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(turn, member, i);
}

uint64_t key_of(uint64_t turn, int member, size_t place) {
  return mix_seed(mix_seed(turn, static_cast<uint64_t>(member + 1)), place);
}

template <typename T>
uint64_t num_different(const T* left, const T* right, size_t count) {
  uint64_t found = 0;
  for (size_t i = 0; i < count; ++i) found += std::memcmp(left + i, right + i, sizeof(T)) != 0;
  return found;
}

size_t num_drafted_rows(const CommSizes& sizes, int32_t seqs) {
  return static_cast<size_t>(seqs) * static_cast<size_t>(sizes.draft_len + 1);
}

size_t largest_sum(const CommSizes& sizes) {
  const int32_t rows = *std::max_element(sizes.rows.begin(), sizes.rows.end());
  return static_cast<size_t>(rows) * static_cast<size_t>(sizes.hidden_dim);
}

size_t most_keys(const CommSizes& sizes) {
  return num_drafted_rows(sizes, *std::max_element(sizes.num_seqs.begin(), sizes.num_seqs.end()));
}

}  // namespace

struct DeviceCommBench::State {
  State(gpu::Device& its_device,
        const gpu::OpTable& its_ops,
        TargetGroup& host,
        const CommSizes& its_sizes)
      : device(its_device),
        ops(its_ops),
        over_host(host),
        sizes(its_sizes),
        stream(device.make_stream(gpu::Priority::kNormal)),
        values(device, largest_sum(sizes) * sizeof(float)),
        sum(device, largest_sum(sizes) * sizeof(float)),
        x(device, largest_sum(sizes) * sizeof(float)),
        out(device, largest_sum(sizes) * sizeof(float)),
        weight(device, static_cast<size_t>(sizes.hidden_dim) * sizeof(float)),
        counts(device, sizeof(gpu::StepCounts)),
        keys(device, most_keys(sizes) * sizeof(uint64_t)),
        keys_here(device, most_keys(sizes) * sizeof(uint64_t)) {
    std::vector<float> weights(static_cast<size_t>(sizes.hidden_dim));
    fill(weights, 0, kSharedMember);
    device.upload_now(weight.data(), weights.data(), weight.num_bytes());
  }

  void put(const gpu::Buffer& to, std::span<const float> from) const {
    device.upload_now(to.data(), from.data(), from.size_bytes());
  }
  std::vector<float> get(const gpu::Buffer& from, size_t count) const {
    std::vector<float> found(count);
    device.download_now(found.data(), from.data(), count * sizeof(float));
    return found;
  }
  // This rank's values into `values`; gives the sum over all ranks.
  std::vector<float> put_values(uint64_t turn, size_t count) const {
    std::vector<float> mine(count);
    fill(mine, turn, over_host.rank());
    put(values, mine);
    std::vector<float> all(count);
    for (int r = 0; r < over_host.size(); ++r) {
      for (size_t i = 0; i < count; ++i) all[i] += value_of(turn, r, i);
    }
    return all;
  }
  gpu::NormArgs norm_of(int32_t rows) const {
    return {.out = {out.data(), gpu::Type::kF32, sizes.hidden_dim},
            .x = x.as<float>(),
            .weight = weight.as<float>(),
            .eps = 1e-5f,
            .max_rows = rows,
            .step = {.counts = counts.as<gpu::StepCounts>()}};
  }

  gpu::Device& device;
  const gpu::OpTable& ops;
  TargetGroup& over_host;
  const CommSizes sizes;
  const std::unique_ptr<gpu::Stream> stream;
  const gpu::Buffer values, sum, x, out, weight, counts, keys;
  const gpu::PinnedBuffer keys_here;
};

namespace {

CommCase sum_case(const std::string& message, int32_t rows, size_t count, int num_ranks) {
  return {.message = message,
          .x_name = "rows",
          .x = rows,
          .num_bytes = count * sizeof(float),
          .count = count,
          .type = "float",
          .redop = "sum",
          .bus_factor = 2.0 * (num_ranks - 1) / num_ranks};
}

}  // namespace

DeviceCommBench::DeviceCommBench(gpu::Device& device,
                                 const gpu::OpTable& ops,
                                 TargetGroup& over_host,
                                 const CommSizes& sizes) {
  OUTRIDER_CHECK(!sizes.rows.empty() && !sizes.num_seqs.empty() && sizes.hidden_dim > 0);
  state_ = std::make_shared<State>(device, ops, over_host, sizes);
}

DeviceCommBench::~DeviceCommBench() = default;

size_t DeviceCommBench::max_count() const { return largest_sum(state_->sizes); }

std::vector<CommCase> DeviceCommBench::sums_of(DeviceGroup& group, const std::string& name) {
  std::vector<CommCase> cases;
  for (const int32_t rows : state_->sizes.rows) {
    const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(state_->sizes.hidden_dim);
    const auto finish = [state = state_, &group] { group.wait(*state->stream); };

    CommCase sums = sum_case("sums, " + name, rows, count, group.size());
    sums.run = [state = state_, &group, count] {
      group.all_reduce_sum(*state->stream, state->values.as<float>(), count, state->sizes.fold);
    };
    sums.finish = finish;
    sums.num_wrong = [state = state_, run = sums.run, finish, count](uint64_t turn) {
      const std::vector<float> expected = state->put_values(turn, count);
      run();
      finish();
      return num_different(state->get(state->values, count).data(), expected.data(), count);
    };
    cases.push_back(std::move(sums));

    CommCase normed = sum_case("sums and norm, " + name, rows, count, group.size());
    normed.run = [state = state_, &group, rows] {
      group.sum_and_norm(*state->stream,
                         {.norm = state->norm_of(rows),
                          .part = state->values.as<float>(),
                          .fold = state->sizes.fold});
    };
    normed.finish = finish;
    normed.num_wrong = [state = state_, run = normed.run, finish, rows, count](uint64_t turn) {
      const gpu::StepCounts step = {.num_rows = rows};
      state->device.upload_now(state->counts.data(), &step, sizeof step);
      std::vector<float> residual(count);
      fill(residual, turn, kSharedMember);
      // First the op `norm` with the sum made here, then the group's.
      state->put(state->sum, state->put_values(turn, count));
      state->put(state->x, residual);
      gpu::NormArgs alone = state->norm_of(rows);
      alone.part = state->sum.as<float>();
      state->ops.norm(*state->stream, alone);
      state->stream->wait();
      const std::vector<float> expected = state->get(state->out, count);
      const std::vector<float> expected_x = state->get(state->x, count);
      state->put(state->x, residual);
      run();
      finish();
      return num_different(state->get(state->out, count).data(), expected.data(), count) +
             num_different(state->get(state->x, count).data(), expected_x.data(), count);
    };
    cases.push_back(std::move(normed));
  }
  return cases;
}

std::vector<CommCase> DeviceCommBench::keys() {
  std::vector<CommCase> cases;
  for (const int32_t seqs : state_->sizes.num_seqs) {
    const size_t count = num_drafted_rows(state_->sizes, seqs);
    CommCase one = {.message = "row maxima, from the GPU",
                    .x_name = "sequences",
                    .x = seqs,
                    .num_bytes = count * sizeof(uint64_t),
                    .count = count,
                    .type = "uint64",
                    .redop = "max",
                    .bus_factor = 2.0 * (state_->over_host.size() - 1) / state_->over_host.size()};
    one.run = [state = state_, count] {
      state->stream->download(
          state->keys_here.as<uint64_t>(), state->keys.data(), count * sizeof(uint64_t));
      state->stream->wait();
      state->over_host.all_reduce_max(std::span(state->keys_here.as<uint64_t>(), count));
    };
    one.num_wrong = [state = state_, run = one.run, count](uint64_t turn) {
      std::vector<uint64_t> mine(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        mine[i] = key_of(turn, state->over_host.rank(), i);
        for (int r = 0; r < state->over_host.size(); ++r) {
          expected[i] = std::max(expected[i], key_of(turn, r, i));
        }
      }
      state->device.upload_now(state->keys.data(), mine.data(), count * sizeof(uint64_t));
      run();
      return num_different(state->keys_here.as<uint64_t>(), expected.data(), count);
    };
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace outrider
