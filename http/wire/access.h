// Who may call: API keys, origins of browsers, the media type of bodies. Pure functions over a
// request head. And the ids of calls: a client's own when it is harmless, else one made here.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/wire/options.h"
#include "http/wire/request_head.h"

namespace outrider {

// Takes the same time for equal and different texts, whatever their common prefix. Texts over 512
// bytes are never equal to anything.
bool equal_in_fixed_time(std::string_view a, std::string_view b);

// Liveness, readiness and metrics need no key.
bool is_public_path(std::string_view path);

// True when a key is needed and none of the right ones was sent (Authorization: Bearer, or
// X-Api-Key).
bool lacks_key(const RequestHead& head, const std::vector<std::string>& keys);

// A browser page of another origin must not be able to make this server work, even blindly. Behind
// a proxy the server's own origin is the proxy's, told by X-Forwarded-Host or by the browser
// itself.
bool is_foreign_origin(const RequestHead& head, const CorsOptions& cors);

// What a browser asks before it lets a page of another origin make a request.
bool is_preflight(const RequestHead& head);

// The headers of an answer by which a browser lets a page of an allowed origin have it; those of a
// preflight too. Empty for any other origin.
std::vector<std::pair<std::string, std::string>> cors_headers(const RequestHead& head,
                                                              const CorsOptions& cors);

// A body that is there must call itself JSON or nothing.
bool has_json_body(const RequestHead& head);

// 1 to 64 characters of [A-Za-z0-9._-].
bool is_valid_request_id(std::string_view id);

// 32 random hexadecimal digits.
std::string new_request_id();

}  // namespace outrider
