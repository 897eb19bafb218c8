// The page at "/": index.html of this folder, which is part of the program. It talks to the API of
// the server it came from and loads nothing else.
#pragma once

#include "http/wire/response.h"

namespace outrider {

// The page with a Content-Security-Policy that allows its own script and style alone.
ServerResponse chat_page();

}  // namespace outrider
