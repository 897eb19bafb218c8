outrider_test(chat_template_test SOURCES chat_template_test.cpp
              LIBS outrider_models nlohmann_json::nlohmann_json)
outrider_test(jinja_test SOURCES jinja_test.cpp LIBS outrider_models nlohmann_json::nlohmann_json)
outrider_test(jinja_fuzz_test SOURCES jinja_fuzz_test.cpp LIBS outrider_models)
