// Which kernels multiply quantised weights (see int8_choice.h).
#include "runtime/ops/cpu/int8/int8_choice.h"

#if defined(OUTRIDER_X86_KERNELS)
#include <cpuid.h>
#endif

#include "runtime/base/error.h"

namespace outrider::ops::cpu {
namespace {

#if defined(OUTRIDER_X86_KERNELS)
// Clang 16 has no name for it: CPUID leaf 7.1, EAX bit 4 (Intel SDM, volume 2A).
bool has_avx_vnni() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}
bool has_avx512_vnni() { return __builtin_cpu_supports("avx512vnni"); }
#endif

// OCP microscaling formats 1.0, section 5.3.3 (e2m1, twice); llama.cpp's kvalues_iq4nl.
constexpr CodeTable kE2m1 = {{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}, 12};
constexpr CodeTable kNonLinear = {
    {0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240}, 127};

}  // namespace

const CodeTable& code_table(QuantCodes codes) {
  OUTRIDER_CHECK(codes != QuantCodes::kLinear);
  return codes == QuantCodes::kE2m1 ? kE2m1 : kNonLinear;
}

const QuantKernels& quant_kernels_of(Isa isa) {
#if defined(OUTRIDER_X86_KERNELS)
  if (isa == Isa::kAvx512) return has_avx512_vnni() ? kAvx512VnniQuantKernels : kAvx512QuantKernels;
  if (isa == Isa::kAvx2) return has_avx_vnni() ? kAvxVnniQuantKernels : kAvx2QuantKernels;
#endif
  OUTRIDER_CHECK(isa == Isa::kScalar);
  return kScalarQuantKernels;
}

std::vector<const QuantKernels*> all_quant_kernels() {
  std::vector<const QuantKernels*> all = {&kScalarQuantKernels};
#if defined(OUTRIDER_X86_KERNELS)
  if (best_isa() >= Isa::kAvx2) all.push_back(&kAvx2QuantKernels);
  if (best_isa() >= Isa::kAvx2 && has_avx_vnni()) all.push_back(&kAvxVnniQuantKernels);
  if (best_isa() >= Isa::kAvx512) all.push_back(&kAvx512QuantKernels);
  if (best_isa() >= Isa::kAvx512 && has_avx512_vnni()) all.push_back(&kAvx512VnniQuantKernels);
#endif
  return all;
}

}  // namespace outrider::ops::cpu
