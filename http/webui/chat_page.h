// The page at "/": index.html of this folder, which is part of the program. It talks to the API of
// the server it came from and loads nothing else.
#pragma once

#include <string_view>

#include "http/wire/response.h"

namespace outrider {

// GET or HEAD of "/".
bool is_chat_page(std::string_view method, std::string_view path);

// The page with a Content-Security-Policy that allows its own script and style alone.
ServerResponse chat_page();

}  // namespace outrider
