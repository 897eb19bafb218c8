# The library xgrammar from the source that tools/fetch_xgrammar.sh has put into OUTRIDER_XGRAMMAR; OUTRIDER_HAS_XGRAMMAR
# says whether it is there. Its messages come to scheduler/sampling/grammar_engine.cpp.
set(OUTRIDER_XGRAMMAR ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar CACHE PATH "Source of xgrammar 0.2.8; may be missing")
set(OUTRIDER_HAS_XGRAMMAR OFF)
set(OUTRIDER_XGRAMMAR_VERSION none)
if(NOT EXISTS ${OUTRIDER_XGRAMMAR}/include/xgrammar/xgrammar.h)
  message(STATUS "Structured output: no xgrammar at ${OUTRIDER_XGRAMMAR}; building without")
  return()
endif()
set(OUTRIDER_HAS_XGRAMMAR ON)
file(STRINGS ${OUTRIDER_XGRAMMAR}/PKG-INFO version REGEX "^Version: ")
string(REPLACE "Version: " "" OUTRIDER_XGRAMMAR_VERSION "${version}")
# What of 0.2.8 is mended in its source before it is built.
function(mend_xgrammar file from to)
  file(READ ${OUTRIDER_XGRAMMAR}/cpp/${file} text)
  string(REPLACE "${from}" "${to}" mended "${text}")
  string(FIND "${mended}" "${to}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${file} in ${OUTRIDER_XGRAMMAR} is not that of xgrammar 0.2.8, so it cannot be mended")
  endif()
  if(NOT mended STREQUAL text)
    file(WRITE ${OUTRIDER_XGRAMMAR}/cpp/${file} "${mended}")
  endif()
endfunction()
# All digits behind \x are one character, also in what it writes itself: [\x1fab] has three.
mend_xgrammar(support/encoding.h "while ((digit = HexCharToInt(data[2 + len])) != -1)"
  "while (len < 2 && (digit = HexCharToInt(data[2 + len])) != -1)")
# What must follow never ends where a rule leads to itself, and is kept in memory.
mend_xgrammar(grammar_matcher.cc "while (can_find_next_char) {"
  "while (can_find_next_char && num_accepted_chars < 256) {")
file(GLOB sources ${OUTRIDER_XGRAMMAR}/cpp/*.cc ${OUTRIDER_XGRAMMAR}/cpp/support/*.cc
  ${OUTRIDER_XGRAMMAR}/cpp/converter_ext/*.cc)
add_library(xgrammar STATIC ${sources})
target_include_directories(xgrammar SYSTEM PUBLIC ${OUTRIDER_XGRAMMAR}/include
  ${OUTRIDER_XGRAMMAR}/3rdparty/dlpack/include PRIVATE ${OUTRIDER_XGRAMMAR}/3rdparty/picojson)
target_compile_options(xgrammar PRIVATE -w -O2)
if(OUTRIDER_FUZZ)  # what a fuzz target finds in there counts too
  target_compile_options(xgrammar PRIVATE -fsanitize=${OUTRIDER_SANITIZE} -fno-omit-frame-pointer -g1)
endif()
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1)
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 EXPORT_COMPILE_COMMANDS OFF)
target_link_libraries(xgrammar PRIVATE Threads::Threads)
