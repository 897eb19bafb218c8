# Tests of verification and sampling on sharded logits; included by CMakeLists.txt beside it.
outrider_test(verify_law_test
  SOURCES verify_law_test.cpp toy_model.cpp
  LIBS outrider_scheduler
  TIMEOUT 900)
outrider_test(verify_rules_test
  SOURCES verify_rules_test.cpp verify_harness.cpp toy_model.cpp
  LIBS outrider_scheduler)
outrider_test(verify_sampling_test
  SOURCES verify_sampling_test.cpp verify_harness.cpp toy_model.cpp
  LIBS outrider_scheduler)
outrider_test(verify_shards_test
  SOURCES verify_shards_test.cpp verify_harness.cpp
  LIBS outrider_scheduler)
