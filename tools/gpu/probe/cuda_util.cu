// The shared pieces of cuda_util.h.
#include <cuda_bf16.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "tools/gpu/probe/cuda_util.h"

namespace outrider::gpu_probe {
namespace {

struct Event {
  Event() { check(cudaEventCreate(&event), "creating an event"); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t event = nullptr;
};

__global__ void fill_kernel(__nv_bfloat16* data, size_t elements, float scale, unsigned seed) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements;
       i += stride) {
    // Mixer of SplitMix64 (Steele, Lea and Flood 2014).
    unsigned long long z =
        (i + (static_cast<unsigned long long>(seed) << 40)) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    const float unit = static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
    data[i] = __float2bfloat16(unit * scale);
  }
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error) +
                             " (CUDA error " + std::to_string(static_cast<int>(error)) + ")");
  }
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    return "";
  }
  if (error == cudaErrorInsufficientDriver) {
    return "no GPU can be used here: there is no NVIDIA driver, or one too old for CUDA " +
           std::to_string(CUDART_VERSION / 1000) + "." +
           std::to_string(CUDART_VERSION % 1000 / 10) + " (CUDA error 35)";
  }
  if (error == cudaErrorNoDevice || error == cudaSuccess) {
    return "no GPU can be used here: the NVIDIA driver sees none (CUDA error 100)";
  }
  return std::string("no GPU can be used here: ") + cudaGetErrorString(error) + " (CUDA error " +
         std::to_string(static_cast<int>(error)) + ")";
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  check(cudaMalloc(&data_, bytes), ("allocating " + std::to_string(bytes >> 20) + " MiB").c_str());
}

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
}

Graph::Graph(cudaStream_t stream, const std::function<void()>& record) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  try {
    record();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph_);
    cudaGraphDestroy(graph_);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph_), "ending a capture");
  check(cudaGraphInstantiate(&executable_, graph_, 0), "instantiating a graph");
  check(cudaGraphUpload(executable_, stream), "uploading a graph");
}

Graph::~Graph() {
  cudaGraphExecDestroy(executable_);
  cudaGraphDestroy(graph_);
}

double median_us(cudaStream_t stream, int repeats, const std::function<void()>& work) {
  const Event first;
  const Event last;
  std::vector<double> times;
  work();
  check(cudaStreamSynchronize(stream), "warming up");
  for (int i = 0; i < repeats; ++i) {
    check(cudaEventRecord(first.event, stream), "recording an event");
    work();
    check(cudaEventRecord(last.event, stream), "recording an event");
    check(cudaEventSynchronize(last.event), "running what is timed");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, first.event, last.event), "reading the time");
    times.push_back(1e3 * static_cast<double>(milliseconds));
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

double us_per_node(cudaStream_t stream,
                   int nodes,
                   int repeats,
                   const std::function<void(int)>& record) {
  const Graph graph(stream, [&] {
    for (int i = 0; i < nodes; ++i) {
      record(i);
    }
  });
  return median_us(stream, repeats, [&] { graph.launch(stream); }) / nodes;
}

void fill_random_bf16(
    void* data, size_t elements, float scale, unsigned seed, cudaStream_t stream) {
  fill_kernel<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(data), elements, scale, seed);
  check(cudaGetLastError(), "filling memory");
}

}  // namespace outrider::gpu_probe
