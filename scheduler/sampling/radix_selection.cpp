// See radix_selection.h.
#include "scheduler/sampling/radix_selection.h"

#include <span>

namespace outrider {
namespace {

void choose_band(Selection& selection, int digit, std::span<const uint64_t> bands) {
  const int shift = 8 * (kNumDigits - 1 - digit);
  if (digit == 0 && selection.by_mass) {
    uint64_t mass = 0;
    for (uint64_t band : bands) mass += band;
    selection.target = mass_target(selection.share, mass);
  }
  uint32_t chosen = 0;
  while (chosen + 1 < kNumBands && selection.reached + bands[chosen] < selection.target) {
    selection.reached += bands[chosen];
    ++chosen;
  }
  selection.farthest |= chosen << shift;
}

}  // namespace

void select_by_radix(std::vector<Selection>& selections,
                     RowScanner& scanner,
                     ShardExchange& exchange) {
  if (selections.empty()) return;
  std::vector<uint64_t> bands(selections.size() * kNumBands);
  RowQuestions questions;
  for (size_t i = 0; i < selections.size(); ++i) {
    const Selection& selection = selections[i];
    questions.bands.push_back({.row = selection.row,
                               .cut = selection.cut,
                               .order = selection.order,
                               .by_mass = selection.by_mass,
                               .bands = std::span(bands).subspan(i * kNumBands, kNumBands)});
  }
  for (int digit = 0; digit < kNumDigits; ++digit) {
    for (size_t i = 0; i < selections.size(); ++i) {
      questions.bands[i].digit = digit;
      questions.bands[i].farthest = selections[i].farthest;
    }
    scanner.answer(questions);
    exchange.sum(bands);
    for (size_t i = 0; i < selections.size(); ++i) {
      choose_band(selections[i], digit, questions.bands[i].bands);
    }
  }
}

}  // namespace outrider
