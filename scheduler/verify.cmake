# Verification and sampling on sharded logits; included by CMakeLists.txt beside it.
target_sources(outrider_scheduler PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/logits_processor.cpp
  ${CMAKE_CURRENT_LIST_DIR}/logprobs.cpp
  ${CMAKE_CURRENT_LIST_DIR}/propose.cpp
  ${CMAKE_CURRENT_LIST_DIR}/residual.cpp
  ${CMAKE_CURRENT_LIST_DIR}/row_kernels.cpp
  ${CMAKE_CURRENT_LIST_DIR}/row_noise.cpp
  ${CMAKE_CURRENT_LIST_DIR}/rules.cpp
  ${CMAKE_CURRENT_LIST_DIR}/statistics.cpp
  ${CMAKE_CURRENT_LIST_DIR}/truncation.cpp
  ${CMAKE_CURRENT_LIST_DIR}/verify.cpp)
