// Where JSON values end in a text that is still being written. The text need not be valid: what
// counts is brackets and strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outrider {

// Follows one value through pieces of text.
class JsonScan {
 public:
  // How many bytes of the piece belong to the value.
  size_t take(std::string_view piece);
  bool done() const { return done_; }

 private:
  int depth_ = 0;
  bool in_string_ = false;
  bool is_escaped_ = false;
  bool done_ = false;
};

// The value that the text begins with; nullopt when it is not whole.
std::optional<std::string_view> whole_json_value(std::string_view text);

// The text that a JSON string stands for; nullopt when it is none.
std::optional<std::string> json_string(std::string_view json);

}  // namespace outrider
