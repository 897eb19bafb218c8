// See restarts.h.
#include "runtime/ranks/draft/restarts.h"

#include <algorithm>
#include <chrono>

namespace outrider {
namespace {

constexpr double kGoodLifeS = 1.0;
constexpr double kAskAfterS = 1.0;
constexpr double kMostPatienceS = 60.0;
constexpr double kTimesLonger = 4.0;  // than what was seen of an honest one
constexpr double kDoubtS = 0.5;

}  // namespace

double RestartTimes::pause_s(double served_s) {
  if (served_s >= std::max(kGoodLifeS, begin_s_)) next_s_ = first_s_;
  const double pause = next_s_;
  next_s_ = std::min(longest_s_, 2 * next_s_);
  return pause;
}

void HangWatch::begin(Clock::time_point now) {
  heard_at_ = now;
  asked_at_.reset();
  doubted_at_.reset();
}

void HangWatch::heard(Clock::time_point now) {
  if (asked_at_) {
    const double honest_s = kTimesLonger * seconds_of(now - *asked_at_);
    patience_s_ = std::min(kMostPatienceS, std::max(patience_s_, honest_s));
  }
  begin(now);
}

HangWatch::Verdict HangWatch::look(Clock::time_point now) {
  if (seconds_of(now - heard_at_) < kAskAfterS) return Verdict::kFine;
  if (!asked_at_) {
    asked_at_ = now;
    return Verdict::kAsk;
  }
  if (seconds_of(now - *asked_at_) < patience_s_) return Verdict::kFine;
  if (!doubted_at_) doubted_at_ = now;
  if (seconds_of(now - *doubted_at_) < kDoubtS) return Verdict::kFine;
  patience_s_ = std::min(kMostPatienceS, 2 * patience_s_);
  return Verdict::kHung;
}

}  // namespace outrider
