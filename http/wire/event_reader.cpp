// See event_reader.h.
#include "http/wire/event_reader.h"

namespace outrider {

bool EventReader::take(std::string_view bytes,
                       const std::function<bool(std::string_view data)>& on_data) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (line_.size() > kMaxLineBytes) return false;
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    const std::string line = std::move(line_);
    line_.clear();
    std::string_view data = line;
    if (!data.starts_with("data:")) continue;
    data.remove_prefix(5);
    if (data.starts_with(' ')) data.remove_prefix(1);
    if (data.ends_with('\r')) data.remove_suffix(1);
    if (!on_data(data)) break;
  }
  return true;
}

}  // namespace outrider
