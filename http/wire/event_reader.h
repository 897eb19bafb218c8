// The reading side of server-sent events: bytes as they come from a socket to the data of events.
// For clients of this API, ours (`outrider chat`, `bench serve`) among them. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace outrider {

class EventReader {
 public:
  static constexpr size_t kMaxLineBytes = 16u << 20;

  // Calls on_data with the data of every event whose end has come, over any cuts between packets,
  // until it returns false. A "data:" line is an event, as servers of this API send them; comments
  // and other fields are skipped. False when a line is longer than kMaxLineBytes.
  bool take(std::string_view bytes, const std::function<bool(std::string_view data)>& on_data);

 private:
  std::string line_;  // the beginning of one
};

}  // namespace outrider
