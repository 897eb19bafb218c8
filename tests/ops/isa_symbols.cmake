# Fails when an object compiled for AVX defines anything but its kernel table: a weak function (any inline function or
# template that was not inlined) could be chosen by the linker for the whole program and crash on an older CPU.
if(NOT OBJECTS)
  message(FATAL_ERROR "no objects given")
endif()
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} --defined-only --extern-only -C ${object}
    OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "nm failed on ${object}")
  endif()
  string(REGEX REPLACE "\n$" "" symbols "${symbols}")
  if(NOT symbols MATCHES "^[0-9a-f]+ [DR] outrider::ops::cpu::kAvx((2|512|Vnni|512Vnni)(Quant)?Kernels|512Bf16Products)$")
    message(FATAL_ERROR "${object} defines more than its kernel table:\n${symbols}")
  endif()
endforeach()
