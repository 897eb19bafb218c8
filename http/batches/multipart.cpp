// See multipart.h.
#include "http/batches/multipart.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "http/wire/api_error.h"
#include "http/wire/header_text.h"

namespace outrider {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr size_t kMaxBoundaryBytes = 70;  // RFC 2046, 5.1.1
constexpr size_t kMaxHeadBytes = 8u << 10;
constexpr size_t kMaxParts = 32;

using Parameters = std::vector<std::pair<std::string, std::string>>;

[[noreturn]] void refuse(const std::string& what) {
  throw ApiError(400, "the form is not valid: " + what);
}

// A quoted string at the text's begin, which is taken from it. Browsers send a quote as %22, other
// clients with a backslash; a backslash before anything else is one of a file's name.
std::string take_quoted(std::string_view* text) {
  std::string value;
  for (size_t i = 1; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == '"') {
      text->remove_prefix(i + 1);
      return value;
    }
    const bool escapes =
        c == '\\' && i + 1 < text->size() && ((*text)[i + 1] == '"' || (*text)[i + 1] == '\\');
    value += escapes ? (*text)[++i] : c;
  }
  refuse("a quoted value has no end");
}

// Of "form-data; name=\"file\"; filename=x": what stands behind the first semicolon.
Parameters parameters_of(std::string_view value) {
  Parameters found;
  value.remove_prefix(std::min(value.find(';'), value.size()));
  while (!value.empty()) {
    value.remove_prefix(1);
    const size_t equals = value.find('=');
    if (equals == std::string_view::npos) {
      if (trimmed(value).empty()) break;
      refuse("a parameter has no value");
    }
    const std::string name = lower(trimmed(value.substr(0, equals)));
    value = trimmed(value.substr(equals + 1));
    std::string text;
    if (value.starts_with('"')) {
      text = take_quoted(&value);
      value = trimmed(value);
      if (!value.empty() && value.front() != ';') refuse("text follows a quoted value");
    } else {
      const size_t end = std::min(value.find(';'), value.size());
      text = trimmed(value.substr(0, end));
      value.remove_prefix(end);
    }
    found.emplace_back(name, std::move(text));
  }
  return found;
}

std::optional<std::string> parameter(const Parameters& parameters, std::string_view name) {
  std::optional<std::string> found;
  for (const auto& [key, value] : parameters) {
    if (key != name) continue;
    if (found) refuse(fmt::format("'{}' comes twice", name));
    found = value;
  }
  return found;
}

std::string boundary_of(std::string_view content_type) {
  const std::string_view media_type = content_type.substr(0, content_type.find(';'));
  if (lower(trimmed(media_type)) != "multipart/form-data")
    refuse("its media type is not multipart/form-data");
  const std::optional<std::string> boundary = parameter(parameters_of(content_type), "boundary");
  const bool is_good =
      boundary && !boundary->empty() && boundary->size() <= kMaxBoundaryBytes &&
      std::all_of(boundary->begin(), boundary->end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!is_good) refuse("its boundary is missing, or no text of 1 to 70 characters");
  return *boundary;
}

FormPart read_part(std::string_view head, std::string_view content) {
  std::optional<Parameters> disposition;
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find(kLineEnd));
    head.remove_prefix(std::min(head.size(), line.size() + kLineEnd.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) refuse("a header of a part has no colon");
    if (lower(line.substr(0, colon)) != "content-disposition") continue;
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (disposition || lower(trimmed(value.substr(0, value.find(';')))) != "form-data")
      refuse("a part's Content-Disposition must be form-data, once");
    disposition = parameters_of(value);
  }
  const std::optional<std::string> name =
      disposition ? parameter(*disposition, "name") : std::nullopt;
  if (!name) refuse("a part has no name");
  return {*name, parameter(*disposition, "filename"), content};
}

}  // namespace

std::vector<FormPart> read_multipart(std::string_view content_type, std::string_view body) {
  const std::string first = "--" + boundary_of(content_type);
  const std::string delimiter = std::string(kLineEnd) + first;
  if (!body.starts_with(first)) refuse("it does not begin with its boundary");
  body.remove_prefix(first.size());
  std::vector<FormPart> parts;
  while (!body.starts_with("--")) {
    if (!body.starts_with(kLineEnd)) refuse("a boundary is not at the end of its line");
    if (parts.size() == kMaxParts) refuse(fmt::format("it has more than {} parts", kMaxParts));
    // The line end before the headers may be that of their empty list.
    const size_t head_end = body.substr(0, kMaxHeadBytes).find(kHeadEnd);
    if (head_end == std::string_view::npos) refuse("the headers of a part have no end");
    const std::string_view head =
        body.substr(0, head_end).substr(std::min(head_end, kLineEnd.size()));
    body.remove_prefix(head_end + kHeadEnd.size());
    const size_t end = body.find(delimiter);
    if (end == std::string_view::npos) refuse("a part has no end");
    parts.push_back(read_part(head, body.substr(0, end)));
    body.remove_prefix(end + delimiter.size());
  }
  if (body != "--" && body != "--\r\n") refuse("something follows its end");
  return parts;
}

}  // namespace outrider
