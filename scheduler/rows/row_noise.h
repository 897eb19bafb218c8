// Philox bits for many neighbouring blocks, by instruction set; used by row_kernels.cpp only.
#pragma once

#include <cstdint>

#include "runtime/base/numbers/rng.h"

namespace outrider {

// Words of blocks first_block .. first_block + num_blocks, four per block, into out; returns the
// largest word.
uint32_t row_noise_plain(const NoiseKey& key,
                         uint32_t first_block,
                         int32_t num_blocks,
                         uint32_t* out);
#if defined(__x86_64__) && defined(__GNUC__)
uint32_t row_noise_avx2(const NoiseKey& key,
                        uint32_t first_block,
                        int32_t num_blocks,
                        uint32_t* out);
uint32_t row_noise_avx512(const NoiseKey& key,
                          uint32_t first_block,
                          int32_t num_blocks,
                          uint32_t* out);
#endif

}  // namespace outrider
