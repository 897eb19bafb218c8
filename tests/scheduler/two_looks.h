// How laws are judged from samples without false alarms: the limits of a first look and, where that
// does not fit, of a second one at new samples.
//
// A right law exceeds the first limit once in 1,000 draws. What exceeds it is drawn again, with new
// noise and four times the samples, against a limit that is exceeded once in a million: a right law
// fails with probability 1e-9, at the price of the first look. A wrong law that the first look
// finds with 99% probability is found by the second all but surely: four times the noncentrality
// outweighs the higher limit.
#pragma once

#include "scheduler/exactness/chi_square.h"

namespace outrider {

inline constexpr ChiSquareRule kFirstLook{1e-3, 5.0};
inline constexpr ChiSquareRule kSecondLook{1e-6, 20.0};
inline constexpr int kSecondLookFactor = 4;

}  // namespace outrider
