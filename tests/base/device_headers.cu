// Compiled, not run: the noise and the sampling arithmetic are one source for host and device, so they must stay
// compilable by nvcc as device code.
#include "runtime/base/numbers/exact_math.h"
#include "runtime/base/numbers/rng.h"

namespace outrider {

__global__ void draw_on_device(uint64_t seed, uint32_t position, const float* logits, uint64_t* keys) {
  const auto token = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  const NoiseKey key{seed, position, Stream::kCoupled, 0};
  const double score = exact_add(static_cast<double>(logits[token]), gumbel_from_bits(noise_bits(key, token)));
  keys[token] = pack_key(static_cast<float>(score), token) + fixed_weight(exact_log(exact_exp(-1.0)));
}

}  // namespace outrider
