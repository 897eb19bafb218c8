# The files of kernels, one idea each: built by nvcc into liboutrider_cuda.so and once more for the emulated device.
set(OUTRIDER_GPU_KERNELS
  ${CMAKE_CURRENT_LIST_DIR}/embed.cu
  ${CMAKE_CURRENT_LIST_DIR}/norm.cu)
