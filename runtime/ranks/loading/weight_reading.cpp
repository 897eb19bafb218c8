// See weight_reading.h.
#include "runtime/ranks/loading/weight_reading.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "models/forward/transformer.h"
#include "models/synthetic/synthetic.h"
#include "runtime/base/log.h"
#include "runtime/base/telemetry/load_progress.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

double gigabytes(size_t num_bytes) { return static_cast<double>(num_bytes) / 1e9; }

// Tells load_progress() how far it is, and logs a line about every two seconds while a large model
// loads.
class LoadLog {
 public:
  explicit LoadLog(std::string what) : what_(std::move(what)) {}

  void advance(size_t done, size_t all) {
    load_progress().all_bytes += all - std::exchange(all_, all);
    load_progress().read_bytes += done - std::exchange(done_, done);
    const auto now = Clock::now();
    if (now - last_ < std::chrono::seconds(2)) return;
    last_ = now;
    log_info("loading {}: {:.1f} of {:.1f} GB ({} %), {:.2f} GB/s",
             what_,
             gigabytes(done),
             gigabytes(all),
             done * 100 / std::max<size_t>(1, all),
             gigabytes(done) / seconds());
  }

  void finish(size_t num_bytes) const {
    log_info("loaded {}: {:.3f} GB in {:.2f} s, {:.2f} GB/s",
             what_,
             gigabytes(num_bytes),
             seconds(),
             gigabytes(num_bytes) / seconds());
  }

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const {
    return std::max(1e-9, std::chrono::duration<double>(Clock::now() - begin_).count());
  }

  std::string what_;
  size_t done_ = 0;
  size_t all_ = 0;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
};

}  // namespace

std::unique_ptr<Weights> weights_of(const std::string& name,
                                    Role role,
                                    const ModelConfig& config,
                                    const ModelShard& shard,
                                    const ops::ThreadPlan& threads) {
  if (is_synthetic(name)) {
    // Making numbers takes longer than computing with them: all the host's cores, unless the
    // memory's place matters.
    const ops::ThreadPlan makers = threads.cpus.empty() ? ops::ThreadPlan(0) : threads;
    return synthetic_weights(config, shard, parse_synthetic(name).recipe, makers);
  }
  const auto folder = model_folder(name, role);
  LoadLog log(folder.filename().string());
  const auto progress = [&log](size_t done, size_t all) { log.advance(done, all); };
  auto weights = load_weights(folder, config, shard, progress, threads);
  log.finish(weights->num_bytes_read);
  return weights;
}

}  // namespace outrider
