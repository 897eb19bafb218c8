// Compiles the headers that tests share (tests/CMakeLists.txt).
