#Chat templates : our own subset of Jinja.Included by models / CMakeLists.txt.
target_sources(
    outrider_models PRIVATE ${CMAKE_CURRENT_LIST_DIR} /
    chat_template.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_call.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_expression_parser.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_expressions.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_filters_sequence.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_filters_text.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_format.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_functions.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_json.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_lexer.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_loop.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_methods.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_operators.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_parser.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_statements.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_subscript.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_tests.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_text.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_token_stream.cpp ${CMAKE_CURRENT_LIST_DIR} /
    jinja_tojson.cpp ${CMAKE_CURRENT_LIST_DIR} / jinja_value.cpp)
