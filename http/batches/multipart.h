// A form as clients send files (multipart/form-data, RFC 7578). Strict: what is unusual is refused,
// not repaired. Pure functions over bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

struct FormPart {
  std::string name;
  std::optional<std::string> filename;
  std::string_view content;  // of the body that was read
};

// The parts in their order, at most 32. Throws ApiError (400) that says what is wrong.
std::vector<FormPart> read_multipart(std::string_view content_type, std::string_view body);

}  // namespace outrider
