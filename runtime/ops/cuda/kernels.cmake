# The files of kernels, one idea each: built by nvcc into liboutrider_cuda.so and once more for the emulated device.
set(OUTRIDER_GPU_KERNELS
  ${CMAKE_CURRENT_LIST_DIR}/attention_16bit.cu
  ${CMAKE_CURRENT_LIST_DIR}/attention_merge.cu
  ${CMAKE_CURRENT_LIST_DIR}/attention_plain.cu
  ${CMAKE_CURRENT_LIST_DIR}/embed.cu
  ${CMAKE_CURRENT_LIST_DIR}/exchange.cu
  ${CMAKE_CURRENT_LIST_DIR}/kv_blocks.cu
  ${CMAKE_CURRENT_LIST_DIR}/norm.cu
  ${CMAKE_CURRENT_LIST_DIR}/rope_write.cu)
