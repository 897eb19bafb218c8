# Tests of verification and sampling on sharded logits; included by CMakeLists.txt beside it.
outrider_test(verify_law_test SOURCES verify_law_test.cpp toy_model.cpp LIBS outrider_scheduler)
