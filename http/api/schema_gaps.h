// What of a JSON schema the grammar engine leaves out without a word. xgrammar reads the first of
// $ref, const, enum, anyOf, oneOf and allOf that an object has, and nothing beside it; some keywords
// it never reads, and some only beside a type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outrider {

// One sentence for each constraint that is not applied, at most `most`; none when all are. The text
// must have passed json_fault(), which bounds how deep it nests.
std::vector<std::string> schema_gaps(std::string_view schema, size_t most);

}  // namespace outrider
