# The files of kernels, one idea each: built by nvcc into liboutrider_cuda.so and once more for the emulated device.
set(OUTRIDER_GPU_KERNELS
  ${CMAKE_CURRENT_LIST_DIR}/attention_16bit.cu
  ${CMAKE_CURRENT_LIST_DIR}/attention_merge.cu
  ${CMAKE_CURRENT_LIST_DIR}/attention_plain.cu
  ${CMAKE_CURRENT_LIST_DIR}/embed.cu
  ${CMAKE_CURRENT_LIST_DIR}/exchange.cu
  ${CMAKE_CURRENT_LIST_DIR}/fold_parts.cu
  ${CMAKE_CURRENT_LIST_DIR}/kv_blocks.cu
  ${CMAKE_CURRENT_LIST_DIR}/norm.cu
  ${CMAKE_CURRENT_LIST_DIR}/product.cu
  ${CMAKE_CURRENT_LIST_DIR}/product_bf16.cu
  ${CMAKE_CURRENT_LIST_DIR}/product_e4m3.cu
  ${CMAKE_CURRENT_LIST_DIR}/product_f16.cu
  ${CMAKE_CURRENT_LIST_DIR}/product_f32.cu
  ${CMAKE_CURRENT_LIST_DIR}/random.cu
  ${CMAKE_CURRENT_LIST_DIR}/rope_write.cu)
