// Cuts parts into chunks, gives every thread its own list of them and runs the lists. See
// weight_reader.h.
#include "models/weights/weight_reader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "models/weights/weights.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

// A chunk is read into a buffer and packed from there: both should stay in the second-level cache.
constexpr int64_t kChunkBytes = 256 << 10;
// Files of integers may have the rows side by side: a read of few of them is a short one.
constexpr int64_t kIntegerChunkBytes = 2 << 20;
// And so have those that lie by columns: of gpt-oss's experts, reads of 6 KB instead of 96 bytes.
constexpr int64_t kColumnsChunkBytes = 16 << 20;
// Rows of a packed matrix that share cache lines.
constexpr int64_t kRowsAlignment = 16;
// Once a read was slower than any copy, the source is asked for so much ahead.
constexpr int64_t kBytesAhead = 16 << 20;
constexpr double kSlowestCopyBytesPerSecond = 1e9;

struct Chunk {
  const PlannedPart* planned;
  Range rows;  // of the part, from 0
};

// One thread's chunks, in the order of the file as far as the plan has it.
struct Lane {
  std::vector<Chunk> chunks;
  std::atomic<size_t> next{0};
};

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Where the t-th of num equal runs of a destination's panels begins, as a row of the destination.
int64_t run_begin(const PlannedPart& planned, int64_t t, int64_t num) {
  const bool is_packed = planned.packed != nullptr;
  const int64_t rows = is_packed ? planned.packed->n_out() : planned.part.rows.size();
  const int64_t unit = is_packed ? ops::kRowsPerPanel : 1;
  return std::min(rows, round_up(rows, unit) / unit * t / num * unit);
}

class PartsReader {
 public:
  PartsReader(const TensorSource& source,
              const std::vector<PlannedPart>& parts,
              const ops::ThreadPlan& threads)
      : source_(source),
        threads_(threads),
        lanes_(static_cast<size_t>(std::max(1, threads.num_threads))) {
    for (const PlannedPart& planned : parts) plan(planned);
  }

  void run(const std::function<void(size_t, size_t)>& progress);

 private:
  void plan(const PlannedPart& planned);
  void work(size_t own, const std::function<void()>& report);
  void carry(Lane& lane, size_t index, std::vector<std::byte>& buffer, bool& is_waiting);
  void ask_ahead(const Lane& lane, size_t index) const;

  const TensorSource& source_;
  const ops::ThreadPlan& threads_;
  std::vector<Lane> lanes_;
  size_t buffer_bytes_ = 0;
  size_t total_bytes_ = 0;
  std::atomic<size_t> done_bytes_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards failure_
  std::exception_ptr failure_;
};

void PartsReader::plan(const PlannedPart& planned) {
  const int64_t num_rows = planned.part.rows.size();
  const int64_t row_bytes = planned.row_bytes();
  if (num_rows == 0 || row_bytes == 0) return;
  total_bytes_ += static_cast<size_t>(planned.num_bytes());
  const int64_t chunk_bytes = planned.as_integers                          ? kIntegerChunkBytes
                              : source_.lies_by_columns(planned.part.name) ? kColumnsChunkBytes
                                                                           : kChunkBytes;
  const int64_t wanted = std::max<int64_t>(1, chunk_bytes / row_bytes);
  const int64_t step = round_up(std::min(wanted, num_rows), kRowsAlignment);
  if (planned.packed != nullptr && !planned.as_integers) {
    buffer_bytes_ = std::max(buffer_bytes_, static_cast<size_t>(step * row_bytes));
  }
  const auto num = static_cast<int64_t>(lanes_.size());
  for (int64_t t = 0; t < num; ++t) {
    const int64_t begin = std::max<int64_t>(0, run_begin(planned, t, num) - planned.first_row);
    const int64_t end = std::min(num_rows, run_begin(planned, t + 1, num) - planned.first_row);
    for (int64_t row = begin; row < end;) {
      // Ends at a multiple of the alignment, also when a part begins in the middle of a panel.
      const int64_t next = (planned.first_row + row) / kRowsAlignment * kRowsAlignment + step;
      const int64_t stop = std::min(end, next - planned.first_row);
      lanes_[static_cast<size_t>(t)].chunks.push_back({&planned, {row, stop}});
      row = stop;
    }
  }
}

TensorPart part_of(const Chunk& chunk) {
  TensorPart part = chunk.planned->part;
  const int64_t begin = part.rows.begin;
  part.rows = {begin + chunk.rows.begin, begin + chunk.rows.end};
  return part;
}

// From the chunk kBytesAhead away; those before it were asked for earlier.
void PartsReader::ask_ahead(const Lane& lane, size_t index) const {
  const size_t ahead = index + static_cast<size_t>(kBytesAhead / kChunkBytes);
  if (ahead < lane.chunks.size()) source_.expect_soon(part_of(lane.chunks[ahead]));
}

void PartsReader::carry(Lane& lane,
                        size_t index,
                        std::vector<std::byte>& buffer,
                        bool& is_waiting) {
  const Chunk& chunk = lane.chunks[index];
  const PlannedPart& planned = *chunk.planned;
  const int64_t num_bytes = chunk.rows.size() * planned.row_bytes();
  if (planned.as_integers) {
    source_.read_integers(part_of(chunk), planned.first_row + chunk.rows.begin, *planned.packed);
    done_bytes_ += static_cast<size_t>(num_bytes);
    return;
  }
  std::byte* to = planned.packed != nullptr
                      ? buffer.data()
                      : planned.dense + chunk.rows.begin * planned.row_bytes();
  if (is_waiting) ask_ahead(lane, index);
  const auto start = Clock::now();
  source_.read(part_of(chunk), to);
  const std::chrono::duration<double> seconds = Clock::now() - start;
  is_waiting |= seconds.count() > static_cast<double>(num_bytes) / kSlowestCopyBytesPerSecond;
  if (planned.packed != nullptr && planned.packed->is_quantized()) {
    const auto before =
        planned.columns_before * static_cast<int64_t>(ops::dtype_bytes(planned.dtype));
    planned.packed->quantize_rows(planned.first_row + chunk.rows.begin,
                                  {.source = buffer.data() + before,
                                   .num_rows = chunk.rows.size(),
                                   .stride = planned.part.columns.size(),
                                   .dtype = planned.dtype,
                                   .columns_before = planned.columns_before,
                                   .columns_after = planned.columns_after});
  } else if (planned.packed != nullptr) {
    planned.packed->fill_rows(planned.first_row + chunk.rows.begin,
                              buffer.data(),
                              chunk.rows.size(),
                              planned.part.columns.size(),
                              planned.dtype);
  }
  done_bytes_ += static_cast<size_t>(num_bytes);
}

void PartsReader::work(size_t own, const std::function<void()>& report) {
  try {
    const ops::PinnedThread pinned(threads_, static_cast<int>(own));
    std::vector<std::byte> buffer(buffer_bytes_);
    bool is_waiting = false;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[(own + i) % lanes_.size()];
      for (size_t c = lane.next++; c < lane.chunks.size() && !failed_; c = lane.next++) {
        carry(lane, c, buffer, is_waiting);
        if (report) report();
      }
    }
  } catch (...) {
    failed_ = true;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void PartsReader::run(const std::function<void(size_t, size_t)>& progress) {
  size_t reported = 0;
  const auto report = [&] {
    const size_t done = done_bytes_;
    if (progress && done > reported) progress(reported = done, total_bytes_);
  };
  {
    std::vector<std::jthread> helpers;
    for (size_t t = 1; t < lanes_.size(); ++t) helpers.emplace_back([this, t] { work(t, {}); });
    work(0, report);
  }
  if (failure_) std::rethrow_exception(failure_);
  report();
}

}  // namespace

std::vector<float> widen(std::span<const std::byte> raw, ops::DType dtype) {
  std::vector<float> values(raw.size() / ops::dtype_bytes(dtype));
  ops::widen(raw.data(), std::ssize(values), dtype, values.data());
  return values;
}

std::byte* narrow(std::span<const float> values, ops::DType dtype, std::byte* out) {
  if (dtype == ops::DType::kF32) {
    std::memcpy(out, values.data(), values.size_bytes());
    return out + values.size_bytes();
  }
  for (const float value : values) {
    const uint16_t bits =
        dtype == ops::DType::kBF16 ? ops::float_to_bf16(value) : ops::float_to_f16(value);
    std::memcpy(out, &bits, sizeof(bits));
    out += sizeof(bits);
  }
  return out;
}

void read_parts(const TensorSource& source,
                const std::vector<PlannedPart>& parts,
                const ops::ThreadPlan& threads,
                const std::function<void(size_t, size_t)>& progress) {
  PartsReader(source, parts, threads).run(progress);
}

}  // namespace outrider
