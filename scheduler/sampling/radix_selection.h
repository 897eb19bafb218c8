// How far a filter reaches, found digit by digit over sharded rows: four SUMs of 256 bands a row,
// whatever the vocabulary. Used by the truncation only, alike on all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/rows/keep_order.h"
#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/shard_exchange.h"

namespace outrider {

// Finds the smallest distance whose set {token of the row : distance <= it} reaches a number of
// tokens or a share of the row's mass. Tokens below `cut` are not in the row any more.
struct Selection {
  int32_t row = 0;  // of the scanner
  float cut = kMasked;
  KeepOrder order;
  bool by_mass = false;
  uint64_t target = 0;  // tokens; by mass it is found on the way
  float share = 0.0f;   // by mass

  uint32_t farthest = 0;  // out; its leading digits on the way
  uint64_t reached = 0;   // before the band of `farthest`
};

// In ascending order of rows.
void select_by_radix(std::vector<Selection>& selections,
                     RowScanner& scanner,
                     ShardExchange& exchange);

}  // namespace outrider
