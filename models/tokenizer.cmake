# The tokenizer's part of outrider_models; included by models/CMakeLists.txt after the target exists.
target_sources(outrider_models PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/streaming_decoder.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_added_tokens.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_bpe.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_decoder.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_json.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_json_reader.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_json_stages.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_normalizer.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_pretokenize.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_regex.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_scanners.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer_unicode.cpp)
target_link_libraries(outrider_models PRIVATE
  nlohmann_json::nlohmann_json PkgConfig::PCRE2 PkgConfig::UTF8PROC)
