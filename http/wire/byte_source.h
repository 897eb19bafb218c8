// The body of a streamed response, pulled by whoever sends it.
#pragma once

#include <string>

namespace outrider {

class ByteSource {
 public:
  // Destroyed when the response ends for whatever reason; what still runs for it is then cancelled.
  virtual ~ByteSource() = default;
  // Waits a short while (at most about 50 ms) for bytes and appends them; false when there will be
  // no more.
  virtual bool next(std::string* out) = 0;
};

}  // namespace outrider
