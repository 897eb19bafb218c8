// See logit_scanner.h.
#include "runtime/ranks/target/logit_scanner.h"

#include "models/gpu/transformer.h"
#include "runtime/ranks/target/device_row_scanner.h"
#include "scheduler/rows/host_row_scanner.h"

namespace outrider {
namespace {

class PooledRowScanner final : public HostRowScanner {
 public:
  explicit PooledRowScanner(ops::Context& context) : context_(context) {}

 private:
  void for_range(int64_t count, const RangeBody& body) override { context_.for_range(count, body); }

  ops::Context& context_;
};

}  // namespace

std::unique_ptr<RowScanner> make_pooled_scanner(ops::Context& context) {
  return std::make_unique<PooledRowScanner>(context);
}

std::unique_ptr<RowScanner> make_logit_scanner(Model& model, bool read_on_host) {
  auto* const on_gpu = dynamic_cast<GpuTransformer*>(&model);
  if (on_gpu == nullptr || read_on_host) {
    if (on_gpu != nullptr) on_gpu->read_logits_on_host();
    if (model.context() != nullptr) return make_pooled_scanner(*model.context());
    return std::make_unique<HostRowScanner>();
  }
  on_gpu->keep_logits();
  return std::make_unique<DeviceRowScanner>(
      on_gpu->device(), on_gpu->stream(), on_gpu->ops(), [on_gpu] { on_gpu->wait(); });
}

void keep_logits_on_device(Model& model) {
  if (auto* const on_gpu = dynamic_cast<GpuTransformer*>(&model)) on_gpu->keep_logits();
}

}  // namespace outrider
