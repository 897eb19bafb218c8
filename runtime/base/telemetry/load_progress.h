// How many bytes of its weights this process has read, for whoever asks while it loads. Written by
// the threads that load, of all ranks in the process; read by any.
#pragma once

#include <atomic>
#include <cstddef>

namespace outrider {

struct LoadProgress {
  std::atomic<size_t> read_bytes{0};
  std::atomic<size_t> all_bytes{0};  // 0: not known yet
};

inline LoadProgress& load_progress() {
  static LoadProgress progress;
  return progress;
}

}  // namespace outrider
