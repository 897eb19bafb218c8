// The collectives of a sharded vocabulary without ranks: shards as threads that meet at a barrier.
// Every member must make the same calls with the same sizes, as MPI would demand; other sizes are
// an error of the program and throw. Called by law_sampler and tests of verification.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "scheduler/sampling/shard_exchange.h"

namespace outrider {

class ThreadExchangeHub {
 public:
  explicit ThreadExchangeHub(int num_shards)
      : barrier_(num_shards), buffers_(static_cast<size_t>(num_shards)) {}

  class Member final : public ShardExchange {
   public:
    Member(ThreadExchangeHub& hub, int rank) : hub_(hub), rank_(rank) {}
    int num_shards() const override { return static_cast<int>(hub_.buffers_.size()); }
    void max(std::span<uint64_t> values) override {
      reduce(values, [](uint64_t a, uint64_t b) { return std::max(a, b); });
    }
    void sum(std::span<uint64_t> values) override {
      reduce(values, [](uint64_t a, uint64_t b) { return a + b; });
    }
    void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
      ++num_calls;
      publish(mine);
      for (size_t r = 0; r < hub_.buffers_.size(); ++r) {
        if (hub_.buffers_[r].size() != mine.size()) hub_.mismatch_ = true;
        const size_t size = std::min(mine.size(), hub_.buffers_[r].size());
        std::copy_n(
            hub_.buffers_[r].begin(), size, all.begin() + static_cast<ptrdiff_t>(r * mine.size()));
      }
      num_bytes += mine.size();
      hub_.barrier_.arrive_and_wait();
    }
    int num_calls = 0;
    size_t num_bytes = 0;

   private:
    void publish(std::span<const std::byte> mine) {
      hub_.buffers_[static_cast<size_t>(rank_)].assign(mine.begin(), mine.end());
      hub_.barrier_.arrive_and_wait();
    }
    template <typename Combine>
    void reduce(std::span<uint64_t> values, Combine combine) {
      ++num_calls;
      num_bytes += values.size_bytes();
      publish(std::as_bytes(values));
      std::vector<uint64_t> result(values.size(), 0);
      for (const std::vector<std::byte>& buffer : hub_.buffers_) {
        if (buffer.size() != values.size_bytes()) {
          hub_.mismatch_ = true;
          continue;
        }
        const auto* words = reinterpret_cast<const uint64_t*>(buffer.data());
        for (size_t i = 0; i < values.size(); ++i) result[i] = combine(result[i], words[i]);
      }
      hub_.barrier_.arrive_and_wait();
      std::copy(result.begin(), result.end(), values.begin());
    }
    ThreadExchangeHub& hub_;
    int rank_;
  };

  bool mismatch() const { return mismatch_; }

 private:
  std::barrier<> barrier_;
  std::vector<std::vector<std::byte>> buffers_;
  std::atomic<bool> mismatch_{false};
};

// Runs work(rank, exchange) on num_shards threads and returns what each rank made. work may not
// throw: the other shards would wait for ever.
template <typename Result, typename Work>
std::vector<Result> run_on_shards(int num_shards, Work work) {
  ThreadExchangeHub hub(num_shards);
  std::vector<Result> results(static_cast<size_t>(num_shards));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_shards; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadExchangeHub::Member member(hub, rank);
      results[static_cast<size_t>(rank)] = work(rank, member);
    });
  }
  for (std::thread& thread : threads) thread.join();
  OUTRIDER_CHECK(!hub.mismatch());
  return results;
}

}  // namespace outrider
