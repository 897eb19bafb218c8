// Options that are lists in one word: "--rows 1,2,5". Used by the benchmarks that sweep something.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/settings/options.h"

namespace outrider {

// Numbers separated by commas, each from least to most; at least one. Other texts throw Error.
Option integer_list_option(
    std::string key, std::vector<int32_t>* field, int32_t least, int32_t most, std::string help);
Option number_list_option(
    std::string key, std::vector<double>* field, double least, double most, std::string help);
// Words separated by commas; an empty text is no words.
Option word_list_option(std::string key, std::vector<std::string>* field, std::string help);

}  // namespace outrider
