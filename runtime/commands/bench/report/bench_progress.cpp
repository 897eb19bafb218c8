// See bench_progress.h.
#include "runtime/commands/bench/report/bench_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/ranks/job/signals.h"

namespace outrider {
namespace {

constexpr auto kTerminalInterval = std::chrono::milliseconds(200);
constexpr auto kLogInterval = std::chrono::seconds(10);

}  // namespace

Progress::Progress(std::string what, int64_t total, std::FILE* out)
    : what_(std::move(what)), total_(total), out_(out), is_terminal_(isatty(fileno(out)) != 0) {}

Progress::~Progress() {
  if (is_terminal_ && has_said_) fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
}

void Progress::advance(int64_t count) {
  if (wait_stop_signal(std::chrono::milliseconds(0))) throw Error("stopped by a signal");
  done_ += count;
  const auto now = Clock::now();
  if (is_terminal_ ? now - last_ < kTerminalInterval : now - last_ < kLogInterval) return;
  last_ = now;
  say();
}

void Progress::say() {
  has_said_ = true;
  const double passed_s = std::chrono::duration<double>(last_ - begin_).count();
  const double left_s =
      done_ > 0 ? passed_s * static_cast<double>(total_ - done_) / static_cast<double>(done_) : 0;
  fmt::print(out_,
             "{}{}: {} of {}, {:.0f} s, about {:.0f} s left{}",
             is_terminal_ ? "\r\x1b[K" : "",
             what_,
             done_,
             total_,
             passed_s,
             left_s,
             is_terminal_ ? "" : "\n");
  std::fflush(out_);
}

void run_in_turns(int num_turns,
                  const std::vector<std::function<void()>>& variants,
                  Progress* progress) {
  for (int turn = 0; turn < num_turns; ++turn) {
    for (size_t i = 0; i < variants.size(); ++i)
      variants[(static_cast<size_t>(turn) + i) % variants.size()]();
    if (progress != nullptr) progress->advance();
  }
}

}  // namespace outrider
