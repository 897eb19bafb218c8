# The tokenizer's tests; included by tests/models/CMakeLists.txt.
outrider_test(tokenizer_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/tokenizer_test.cpp
  LIBS outrider_models nlohmann_json::nlohmann_json)
outrider_test(tokenizer_golden_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/tokenizer_golden_test.cpp
  LIBS outrider_models nlohmann_json::nlohmann_json)
outrider_test(tokenizer_fuzz_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/tokenizer_fuzz_test.cpp
  LIBS outrider_models)
