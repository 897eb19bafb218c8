// Which instruction set a rank computes with, and the context that carries it with the threads.
#include <string>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

#if defined(OUTRIDER_X86_KERNELS)
#include <cpuid.h>
#endif

namespace outrider::ops {

namespace cpu {

const KernelTable& kernels_of(Isa isa) {
#if defined(OUTRIDER_X86_KERNELS)
  if (isa == Isa::kAvx512) return kAvx512Kernels;
  if (isa == Isa::kAvx2) return kAvx2Kernels;
#endif
  OUTRIDER_CHECK(isa == Isa::kScalar);
  return kScalarKernels;
}

const RoundedProducts& rounded_products_of(const Context& ctx) {
  const KernelTable& table = kernels_of(ctx.isa());
  return ctx.uses_bf16_dot() ? *table.rounded_by_dot : table.rounded;
}

}  // namespace cpu

#if defined(OUTRIDER_X86_KERNELS)
namespace {

// __builtin_cpu_supports() of clang 14 does not know it.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace
#endif

Isa best_isa() {
#if defined(OUTRIDER_X86_KERNELS)
  // These ask the operating system too whether it saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kScalar;
}

Isa isa_from_name(const std::string& name) {
  if (name == "auto") return best_isa();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (name == isa_name(isa)) return isa;
  }
  throw Error("unknown instruction set \"" + name + "\": use auto, scalar, avx2 or avx512");
}

bool has_bf16_dot() {
#if defined(OUTRIDER_X86_KERNELS)
  return best_isa() == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Context::Context(const ThreadPlan& plan, Isa isa) : isa_(isa) {
  if (isa > best_isa()) {
    throw Error(std::string("this CPU has no ") + isa_name(isa) + "; the best it has is " +
                isa_name(best_isa()));
  }
  threads_ = std::make_unique<ThreadPool>(plan);
}

Context::~Context() = default;

std::byte* Context::scratch(size_t num_bytes) {
  if (num_bytes > scratch_bytes_) {
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    scratch_ = allocate_bytes(num_bytes, plan().nodes);
    scratch_bytes_ = num_bytes;
  }
  return scratch_.get();
}

const ThreadPlan& Context::plan() const { return threads_->plan(); }

int Context::num_threads() const { return threads_->num_threads(); }

void Context::for_range(int64_t count,
                        const std::function<void(int64_t begin, int64_t end)>& body) {
  threads_->for_range(count, false, body);
}

uint32_t Context::num_hand_overs() const { return threads_->num_rounds(); }

bool Context::uses_bf16_dot() const {
  return bf16_dot_allowed_ && isa_ == Isa::kAvx512 && has_bf16_dot();
}

}  // namespace outrider::ops
