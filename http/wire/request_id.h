// Ids of HTTP calls: a client's own when it is harmless, else one made here.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

// 1 to 64 characters of [A-Za-z0-9._-].
bool is_valid_request_id(std::string_view id);

// 32 random hexadecimal digits.
std::string new_request_id();

}  // namespace outrider
