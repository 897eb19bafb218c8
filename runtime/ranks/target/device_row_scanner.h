// Answers sampling's questions about rows of logits in device memory: packs them into one upload,
// launches the kernels of runtime/ops/gpu/row_scan.h, and waits for one download. All of that is
// queued behind the step that writes the logits; nobody waits for it before. No logit comes back
// but those that were asked for by name. The addresses in rows and questions are the
// device's; the stream is the one that the logits were queued on. One per thread that samples.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "runtime/ops/gpu/ops.h"
#include "runtime/ops/gpu/row_scan.h"
#include "runtime/ranks/target/mirrored_memory.h"
#include "scheduler/rows/row_scanner.h"

namespace outrider {

class DeviceRowScanner final : public RowScanner {
 public:
  // All three must outlive this. wait: until all that is on the stream is done, the step included;
  // empty: Stream::wait().
  DeviceRowScanner(gpu::Device& device,
                   gpu::Stream& stream,
                   const gpu::OpTable& ops,
                   std::function<void()> wait = {});

  void hold(std::span<const RowView> rows) override;
  void answer(RowQuestions& questions) override;

 private:
  // Where the answers of a question will be, in answers_.
  struct TopPlaces {
    Mirrored<uint64_t> keys;
    Mirrored<uint64_t> words;  // flipped_last, num_last, bad
  };

  void begin(MirroredMemory& memory, size_t num_bytes) const;
  void pack_rows();
  void make_room(const RowQuestions& questions);
  void pack_reads(const RowQuestions& questions, gpu::RowTasks* tasks);
  void pack_bests(const RowQuestions& questions, gpu::RowTasks* tasks);
  void pack_sums(const RowQuestions& questions, gpu::RowTasks* tasks);
  void pack_tops(const RowQuestions& questions, gpu::RowTasks* tasks);
  void pack_bands(const RowQuestions& questions, gpu::RowTasks* tasks);
  void pack_ranks(const RowQuestions& questions, gpu::RowTasks* tasks);
  void unpack(RowQuestions& questions) const;
  template <typename Question>
  int32_t size_of(const Question& question) const;

  gpu::Device& device_;
  gpu::Stream& stream_;
  const gpu::OpTable& ops_;
  const std::function<void()> wait_;
  std::span<const RowView> rows_;
  bool rows_changed_ = false;
  const gpu::ScannedRow* rows_on_device_ = nullptr;
  int32_t most_tokens_ = 0;    // of the rows
  MirroredMemory row_memory_;  // descriptions, edits, masks: as long as the rows are held
  MirroredMemory asked_;       // tasks and lists of a trip
  MirroredMemory answers_;     // words of a trip
  gpu::Buffer candidates_;     // scratch of the n best
  // Where the answers are, in the order of the questions.
  std::vector<Mirrored<float>> read_places_;
  Mirrored<uint64_t> best_words_;  // key and bad, of scans and then of draws
  Mirrored<uint64_t> sum_words_;   // mass and moment
  std::vector<TopPlaces> top_places_;
  Mirrored<uint64_t> band_words_;
  Mirrored<uint64_t> rank_words_;
};

}  // namespace outrider
