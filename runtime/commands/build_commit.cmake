# Writes OUTPUT, a C++ file with the commit of SOURCE; run at every build, touches the file only when the commit changed.
set(commit "unknown")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --show-prefix HEAD
    OUTPUT_VARIABLE answer RESULT_VARIABLE failed ERROR_QUIET)
  # The first line is empty at the top of a checkout: a copy inside another repository is not that repository.
  if(NOT failed AND answer MATCHES "^\n([0-9a-f]+)\n$")
    set(commit ${CMAKE_MATCH_1})
    execute_process(COMMAND ${git} --no-optional-locks -C ${SOURCE} status --porcelain --untracked-files=no
      OUTPUT_VARIABLE changes ERROR_QUIET)
    if(NOT changes STREQUAL "")
      string(APPEND commit "+dirty")
    endif()
  endif()
endif()
set(text "// Generated.\nnamespace outrider {\nextern const char* const kBuildCommit;\n\
const char* const kBuildCommit = \"${commit}\";\n}  // namespace outrider\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
