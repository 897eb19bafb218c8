// See device_row_scanner.h.
#include "runtime/ranks/target/device_row_scanner.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {
namespace {

// A copy of a list, for the device; null for an empty one.
template <typename T>
const T* place_list(MirroredMemory& memory, std::span<const T> list) {
  if (list.empty()) return nullptr;
  const Mirrored<T> place = memory.place<T>(list.size());
  std::copy(list.begin(), list.end(), place.host);
  return place.device;
}

int32_t count_of(size_t n) { return static_cast<int32_t>(n); }

// Of none, too, one wants to know whether the row is bad.
int32_t num_wanted(const TopQuestion& top) { return std::max(count_of(top.keys.size()), 1); }

}  // namespace

DeviceRowScanner::DeviceRowScanner(gpu::Device& device,
                                   gpu::Stream& stream,
                                   const gpu::OpTable& ops,
                                   std::function<void()> wait)
    : device_(device),
      stream_(stream),
      ops_(ops),
      wait_(wait ? std::move(wait) : [&stream] { stream.wait(); }),
      row_memory_(device),
      asked_(device),
      answers_(device) {}

void DeviceRowScanner::hold(std::span<const RowView> rows) {
  rows_ = rows;
  rows_changed_ = true;  // goes with the next questions
}

void DeviceRowScanner::answer(RowQuestions& questions) {
  if (questions.empty()) return;
  if (rows_changed_) pack_rows();
  make_room(questions);
  gpu::RowTasks tasks;
  tasks.rows = rows_on_device_;
  tasks.most_tokens = most_tokens_;
  pack_reads(questions, &tasks);
  pack_bests(questions, &tasks);
  pack_sums(questions, &tasks);
  pack_tops(questions, &tasks);
  pack_bands(questions, &tasks);
  pack_ranks(questions, &tasks);
  asked_.upload(stream_);
  answers_.clear_on_device(stream_);
  ops_.scan_rows(stream_, tasks);
  answers_.download(stream_);
  wait_();
  unpack(questions);
}

// Freeing memory waits for the device, which may wait for other ranks: not while a step is under
// way.
void DeviceRowScanner::begin(MirroredMemory& memory, size_t num_bytes) const {
  if (!memory.has_room(num_bytes)) wait_();
  memory.begin(num_bytes);
}

// ---- rows

void DeviceRowScanner::pack_rows() {
  rows_changed_ = false;
  size_t num_bytes = MirroredMemory::bytes_for<gpu::ScannedRow>(rows_.size());
  for (const RowView& row : rows_) {
    num_bytes += MirroredMemory::bytes_for<int32_t>(row.edit_index.size());
    num_bytes += MirroredMemory::bytes_for<float>(row.edit_value.size());
    num_bytes += MirroredMemory::bytes_for<uint64_t>(row.allowed.size());
  }
  begin(row_memory_, num_bytes);
  const auto place = row_memory_.place<gpu::ScannedRow>(rows_.size());
  rows_on_device_ = place.device;
  most_tokens_ = 0;
  const int32_t* shared_index = nullptr;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const RowView& row = rows_[r];
    // A sequence's rows share one list of indices.
    const bool shares = r > 0 && row.edit_index.data() == rows_[r - 1].edit_index.data() &&
                        row.edit_index.size() == rows_[r - 1].edit_index.size();
    if (!shares) shared_index = place_list(row_memory_, row.edit_index);
    place.host[r] = {.logits = row.logits.behind(),
                     .edit_index = shared_index,
                     .edit_value = place_list(row_memory_, row.edit_value),
                     .allowed = place_list(row_memory_, row.allowed),
                     .num_edits = count_of(row.edit_index.size()),
                     .size = row.size,
                     .first_token = row.first_token,
                     .inverse_temperature = row.inverse_temperature};
    most_tokens_ = std::max(most_tokens_, row.size);
  }
  row_memory_.upload(stream_);
}

template <typename Question>
int32_t DeviceRowScanner::size_of(const Question& question) const {
  const auto row = static_cast<size_t>(question.row);
  OUTRIDER_CHECK(row < rows_.size());
  return rows_[row].size;
}

// ---- questions

// Upper bounds of what the packing takes.
void DeviceRowScanner::make_room(const RowQuestions& questions) {
  using Memory = MirroredMemory;
  size_t asked = Memory::bytes_for<gpu::ReadTask>(questions.reads.size()) +
                 Memory::bytes_for<gpu::BestTask>(questions.scans.size() + questions.draws.size()) +
                 Memory::bytes_for<gpu::SumTask>(questions.sums.size()) +
                 Memory::bytes_for<gpu::TopTask>(questions.tops.size()) +
                 Memory::bytes_for<gpu::BandTask>(questions.bands.size()) +
                 Memory::bytes_for<gpu::RankTask>(questions.ranks.size());
  size_t answers =
      Memory::bytes_for<uint64_t>(2 * (questions.scans.size() + questions.draws.size())) +
      Memory::bytes_for<uint64_t>(2 * questions.sums.size()) +
      Memory::bytes_for<uint64_t>(kNumBands * questions.bands.size()) +
      Memory::bytes_for<uint64_t>(questions.ranks.size());
  for (const ReadQuestion& read : questions.reads) {
    asked += Memory::bytes_for<int32_t>(read.index.size());
    answers += Memory::bytes_for<float>(read.values.size());
  }
  for (const DrawQuestion& draw : questions.draws) {
    asked += Memory::bytes_for<int32_t>(draw.without.size());
  }
  for (const TopQuestion& top : questions.tops) {
    answers += Memory::bytes_for<uint64_t>(static_cast<size_t>(num_wanted(top))) +
               Memory::bytes_for<uint64_t>(3);
  }
  begin(asked_, asked);
  begin(answers_, answers);
}

void DeviceRowScanner::pack_reads(const RowQuestions& questions, gpu::RowTasks* tasks) {
  const auto place = asked_.place<gpu::ReadTask>(questions.reads.size());
  tasks->reads = place.device;
  tasks->num_reads = count_of(questions.reads.size());
  read_places_.clear();
  for (size_t i = 0; i < questions.reads.size(); ++i) {
    const ReadQuestion& read = questions.reads[i];
    OUTRIDER_CHECK(read.values.size() == static_cast<size_t>(read.num_rows) * read.index.size());
    read_places_.push_back(answers_.place<float>(read.values.size()));
    place.host[i] = {.logits = read.logits.behind(),
                     .stride = read.stride,
                     .index = place_list(asked_, read.index),
                     .num_index = count_of(read.index.size()),
                     .num_rows = read.num_rows,
                     .values = read_places_.back().device};
    tasks->most_values = std::max(tasks->most_values, count_of(read.values.size()));
  }
}

void DeviceRowScanner::pack_bests(const RowQuestions& questions, gpu::RowTasks* tasks) {
  const size_t num_scans = questions.scans.size();
  const size_t num = num_scans + questions.draws.size();
  const auto place = asked_.place<gpu::BestTask>(num);
  tasks->bests = place.device;
  tasks->num_bests = count_of(num);
  best_words_ = answers_.place<uint64_t>(2 * num);
  for (size_t i = 0; i < num_scans; ++i) {
    const ScanQuestion& scan = questions.scans[i];
    place.host[i] = {.row = scan.row,
                     .draws = scan.draws ? 1 : 0,
                     .noise = scan.noise,
                     .cut = kMasked,
                     .ceiling = kNoCeiling};
  }
  for (size_t i = 0; i < questions.draws.size(); ++i) {
    const DrawQuestion& draw = questions.draws[i];
    place.host[num_scans + i] = {.row = draw.row,
                                 .draws = 1,
                                 .noise = draw.noise,
                                 .cut = draw.cut,
                                 .ceiling = draw.ceiling,
                                 .without = place_list(asked_, draw.without),
                                 .num_without = count_of(draw.without.size())};
  }
  for (size_t i = 0; i < num; ++i) {
    place.host[i].key = best_words_.device + 2 * i;
    place.host[i].bad = best_words_.device + 2 * i + 1;
  }
}

void DeviceRowScanner::pack_sums(const RowQuestions& questions, gpu::RowTasks* tasks) {
  const auto place = asked_.place<gpu::SumTask>(questions.sums.size());
  tasks->sums = place.device;
  tasks->num_sums = count_of(questions.sums.size());
  sum_words_ = answers_.place<uint64_t>(2 * questions.sums.size());
  for (size_t i = 0; i < questions.sums.size(); ++i) {
    const SumQuestion& sum = questions.sums[i];
    place.host[i] = {.row = sum.row,
                     .max = sum.max,
                     .cut = sum.cut,
                     .ceiling = sum.ceiling,
                     .mass = sum_words_.device + 2 * i,
                     .moment = sum.wants_moment ? sum_words_.device + 2 * i + 1 : nullptr};
  }
}

void DeviceRowScanner::pack_tops(const RowQuestions& questions, gpu::RowTasks* tasks) {
  const auto place = asked_.place<gpu::TopTask>(questions.tops.size());
  tasks->tops = place.device;
  tasks->num_tops = count_of(questions.tops.size());
  top_places_.clear();
  size_t num_candidates = 0;
  for (const TopQuestion& top : questions.tops) {
    num_candidates += static_cast<size_t>(gpu::top_candidates(size_of(top), num_wanted(top)));
  }
  if (candidates_.num_bytes() < num_candidates * sizeof(uint64_t)) {
    wait_();
    candidates_ = gpu::Buffer(device_, num_candidates * sizeof(uint64_t));
  }
  auto* scratch = candidates_.as<uint64_t>();
  for (size_t i = 0; i < questions.tops.size(); ++i) {
    const TopQuestion& top = questions.tops[i];
    const int32_t n = num_wanted(top);
    const TopPlaces places = {answers_.place<uint64_t>(static_cast<size_t>(n)),
                              answers_.place<uint64_t>(3)};
    top_places_.push_back(places);
    place.host[i] = {.row = top.row,
                     .n = n,
                     .ceiling = top.ceiling,
                     .counts_last = top.counts_last ? 1 : 0,
                     .candidates = scratch,
                     .keys = places.keys.device,
                     .flipped_last = places.words.device,
                     .num_last = places.words.device + 1,
                     .bad = places.words.device + 2};
    scratch += gpu::top_candidates(size_of(top), n);
    tasks->counts_last = tasks->counts_last || top.counts_last;
  }
}

void DeviceRowScanner::pack_bands(const RowQuestions& questions, gpu::RowTasks* tasks) {
  const auto place = asked_.place<gpu::BandTask>(questions.bands.size());
  tasks->bands = place.device;
  tasks->num_bands = count_of(questions.bands.size());
  band_words_ = answers_.place<uint64_t>(kNumBands * questions.bands.size());
  for (size_t i = 0; i < questions.bands.size(); ++i) {
    const BandQuestion& band = questions.bands[i];
    OUTRIDER_CHECK(band.bands.size() == kNumBands);
    place.host[i] = {.row = band.row,
                     .cut = band.cut,
                     .max = band.order.max,
                     .by_mass = band.by_mass ? 1 : 0,
                     .center = band.order.center,
                     .farthest = band.farthest,
                     .shift = 8 * (kNumDigits - 1 - band.digit),
                     .bands = band_words_.device + kNumBands * i};
  }
}

void DeviceRowScanner::pack_ranks(const RowQuestions& questions, gpu::RowTasks* tasks) {
  const auto place = asked_.place<gpu::RankTask>(questions.ranks.size());
  tasks->ranks = place.device;
  tasks->num_ranks = count_of(questions.ranks.size());
  rank_words_ = answers_.place<uint64_t>(questions.ranks.size());
  for (size_t i = 0; i < questions.ranks.size(); ++i) {
    const RankQuestion& rank = questions.ranks[i];
    place.host[i] = {.row = rank.row,
                     .value = rank.value,
                     .token = rank.token,
                     .num_before = rank_words_.device + i};
  }
}

// ---- answers

void DeviceRowScanner::unpack(RowQuestions& questions) const {
  for (size_t i = 0; i < questions.reads.size(); ++i) {
    const std::span<float> values = questions.reads[i].values;
    std::copy_n(read_places_[i].host, values.size(), values.begin());
  }
  const uint64_t* best = best_words_.host;
  for (ScanQuestion& scan : questions.scans) {
    scan.key = *best++;
    scan.bad = *best++ != 0;
  }
  for (DrawQuestion& draw : questions.draws) {
    draw.key = std::max(draw.key_to_beat, *best);  // 0 of an empty row
    best += 2;
  }
  const uint64_t* sums = sum_words_.host;
  for (SumQuestion& sum : questions.sums) {
    sum.mass = *sums++;
    sum.moment = *sums++;
  }
  for (size_t i = 0; i < questions.tops.size(); ++i) {
    TopQuestion& top = questions.tops[i];
    top.num_last = top.keys.empty() ? 0 : static_cast<uint32_t>(top_places_[i].words.host[1]);
    top.keys = top.keys.first(std::min(top.keys.size(), static_cast<size_t>(size_of(top))));
    std::copy_n(top_places_[i].keys.host, top.keys.size(), top.keys.begin());
    std::ranges::sort(top.keys, std::greater<uint64_t>());
    top.bad = top_places_[i].words.host[2] != 0;
  }
  const uint64_t* bands = band_words_.host;
  for (BandQuestion& band : questions.bands) {
    std::copy_n(bands, kNumBands, band.bands.begin());
    bands += kNumBands;
  }
  const uint64_t* ranks = rank_words_.host;
  for (RankQuestion& rank : questions.ranks) rank.num_before = *ranks++;
}

}  // namespace outrider
