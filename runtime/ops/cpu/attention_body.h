// Attention over one chunk of positions and the small vector ops, written once over 16-lane
// vectors. Included by each kernels_<isa>.cpp inside its own namespace, after it has defined Lanes
// and the primitives; never included elsewhere. Invariant: lane l of a sum over positions holds
// those with (slot in chunk) % 16 == l, lane l of a dot product the dims with d % 16 == l, both
// folded by the same tree (l + 8, l + 4, l + 2, l + 1); so bits are the same on every ISA.
#pragma once

// exp(x) by x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor polynomial of degree 7 (remainder below
// 6e-9). Relative error below 2e-7; 0 below -104, inf above 88.73, NaN stays NaN.
OUTRIDER_INLINE Lanes exponential(Lanes x) {
  const Lanes magic = constant(12582912.0f);  // adding it rounds to an integer kept in the low bits
  x = clamp_keeping_nan(x, -104.0f, 89.0f);
  const Lanes shifted = fma(x, constant(1.44269504088896341f), magic);
  const Lanes n = sub(shifted, magic);
  Lanes r =
      fma(n, constant(-0.693145751953125f), x);  // ln 2 in two parts: n times the first is exact
  r = fma(n, constant(-1.42860682030941723e-6f), r);
  Lanes y = fma(constant(1.0f / 5040.0f), r, constant(1.0f / 720.0f));
  y = fma(y, r, constant(1.0f / 120.0f));
  y = fma(y, r, constant(1.0f / 24.0f));
  y = fma(y, r, constant(1.0f / 6.0f));
  y = fma(y, r, constant(0.5f));
  y = fma(y, r, constant(1.0f));
  y = fma(y, r, constant(1.0f));
  return scale_by_power_of_two(y, shifted);
}

OUTRIDER_INLINE Lanes load_up_to(const float* x, int64_t count) {
  return count >= kLanes ? load(x) : load_partial(x, static_cast<int>(count));
}

OUTRIDER_INLINE void store_up_to(float* x, Lanes value, int64_t count) {
  if (count >= kLanes) {
    store(x, value);
  } else {
    store_partial(x, value, static_cast<int>(count));
  }
}

float sum_of_squares(const float* x, int64_t n) {
  Lanes sum = zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes value = load_up_to(x + i, n - i);
    sum = fma(value, value, sum);
  }
  return fold_add(sum);
}

void scale_by_weight(float* out, const float* x, float scale, const float* weight, int64_t n) {
  const Lanes factor = constant(scale);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes scaled = mul(load_up_to(x + i, n - i), factor);
    store_up_to(out + i, mul(scaled, load_up_to(weight + i, n - i)), n - i);
  }
}

void silu_mul(float* out, const float* gate, const float* up, int64_t n) {
  const Lanes one = constant(1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes x = load_up_to(gate + i, n - i);
    const Lanes activated = div(x, add(one, exponential(sub(zero(), x))));
    store_up_to(out + i, mul(activated, load_up_to(up + i, n - i)), n - i);
  }
}

void exponential_of_array(float* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    store_up_to(out + i, exponential(load_up_to(x + i, n - i)), n - i);
  }
}

// scores[j] = scale * (query . key of position j), kCount positions side by side.
template <int kCount>
OUTRIDER_INLINE void dot_products(const AttentionPiece& piece,
                                  const float* query,
                                  int64_t begin,
                                  float* scores) {
  Lanes sums[kCount];
  const float* keys[kCount];
  for (int j = 0; j < kCount; ++j) {
    sums[j] = zero();
    keys[j] = piece.keys + piece.offsets[begin + j];
  }
  int64_t d = 0;
  for (; d + kLanes <= piece.head_dim; d += kLanes) {
    const Lanes q = load(query + d);
#pragma GCC unroll 16
    for (int j = 0; j < kCount; ++j) sums[j] = fma(q, load(keys[j] + d), sums[j]);
  }
  if (d < piece.head_dim) {
    const int rest = static_cast<int>(piece.head_dim - d);
    const Lanes q = load_partial(query + d, rest);
    for (int j = 0; j < kCount; ++j) sums[j] = fma(q, load_partial(keys[j] + d, rest), sums[j]);
  }
  fold_add_many<kCount>(sums, piece.scale, scores);
}

void score_positions(const AttentionPiece& piece, const float* query, float* scores) {
  for (int64_t slot = 0; slot < kPositionChunk; slot += kLanes) {
    store(scores + slot, constant(-__builtin_inff()));
  }
  int64_t j = 0;
  for (; j + kDotPositions <= piece.count; j += kDotPositions) {
    dot_products<kDotPositions>(piece, query, j, scores + piece.first + j);
  }
  for (; j < piece.count; ++j) dot_products<1>(piece, query, j, scores + piece.first + j);
}

// Turns scores into exp(score - max); writes max and sum. Slots without a position hold -inf and
// become 0.
void soften(float* scores, float* partial) {
  Lanes top = load(scores);
  for (int64_t slot = kLanes; slot < kPositionChunk; slot += kLanes)
    top = max(top, load(scores + slot));
  const float most = fold_max(top);
  Lanes sum = zero();
  for (int64_t slot = 0; slot < kPositionChunk; slot += kLanes) {
    const Lanes weight = exponential(sub(load(scores + slot), constant(most)));
    store(scores + slot, weight);
    sum = add(sum, weight);
  }
  partial[0] = most;
  partial[1] = fold_add(sum);
}

// Value sums of kHeads query heads from head on; each in ascending order of positions.
template <int kHeads>
OUTRIDER_NOINLINE void weigh_values(const AttentionPiece& piece, int64_t head) {
  const float* weights = piece.scores + head * kPositionChunk + piece.first;
  float* sums = piece.partials + head * (piece.head_dim + 2) + 2;
  for (int64_t d = 0; d < piece.head_dim; d += kLanes) {
    Lanes acc[kHeads];
    for (int h = 0; h < kHeads; ++h) acc[h] = zero();
    const int64_t rest = piece.head_dim - d;
    for (int64_t j = 0; j < piece.count; ++j) {
      const Lanes value = load_up_to(piece.values + piece.offsets[j] + d, rest);
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        acc[h] = fma(value, broadcast(weights + h * kPositionChunk + j), acc[h]);
      }
    }
    for (int h = 0; h < kHeads; ++h) store_up_to(sums + h * (piece.head_dim + 2) + d, acc[h], rest);
  }
}

void attention_piece(const AttentionPiece& piece) {
  for (int64_t head = 0; head < piece.group; ++head) {
    float* scores = piece.scores + head * kPositionChunk;
    score_positions(piece, piece.queries + head * piece.head_dim, scores);
    soften(scores, piece.partials + head * (piece.head_dim + 2));
  }
  int64_t head = 0;
  for (; head + 4 <= piece.group; head += 4) weigh_values<4>(piece, head);
  for (; head + 2 <= piece.group; head += 2) weigh_values<2>(piece, head);
  for (; head < piece.group; ++head) weigh_values<1>(piece, head);
}

void attention_merge(float* running, const float* partial, int64_t head_dim) {
  const float most = running[0] > partial[0] ? running[0] : partial[0];
  const Lanes old_factor = exponential(constant(running[0] - most));
  const Lanes new_factor = exponential(constant(partial[0] - most));
  const Lanes sum = fma(constant(running[1]), old_factor, mul(constant(partial[1]), new_factor));
  running[0] = most;
  store_partial(running + 1, sum, 1);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t rest = head_dim - d;
    const Lanes added = mul(load_up_to(partial + 2 + d, rest), new_factor);
    store_up_to(running + 2 + d, fma(load_up_to(running + 2 + d, rest), old_factor, added), rest);
  }
}

void attention_finish(float* out, const float* running, int64_t head_dim) {
  const Lanes sum = constant(running[1]);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t rest = head_dim - d;
    store_up_to(out + d, div(load_up_to(running + 2 + d, rest), sum), rest);
  }
}
