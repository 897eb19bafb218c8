// Small things all probes share: errors as sentences, memory that frees itself, timing by graph
// replay.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <string>

namespace outrider::gpu_probe {

// Throws std::runtime_error: what was tried and what CUDA says to it.
void check(cudaError_t error, const char* what);

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes);
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// A stream of its own, not synchronised with the default one.
class Stream {
 public:
  Stream();
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Graph {
 public:
  // Captures what `record` puts on the stream.
  Graph(cudaStream_t stream, const std::function<void()>& record);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(executable_, stream), "launching a graph");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// Microseconds on the device from the first event to the last around `work`: the median of
// `repeats` after one warm-up.
double median_us(cudaStream_t stream, int repeats, const std::function<void()>& work);

// Captures `record(i)` for i < nodes in one graph and replays it; microseconds per node.
double us_per_node(cudaStream_t stream,
                   int nodes,
                   int repeats,
                   const std::function<void(int)>& record);

// A launch that may begin before its predecessor in the stream has ended (programmatic dependent
// launch).
struct LaunchShape {
  int blocks = 1;
  int threads = 1;
  size_t shared_bytes = 0;
  bool programmatic = false;
};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...),
            const LaunchShape& shape,
            cudaStream_t stream,
            Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = shape.programmatic ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
        "launching a kernel");
}

// Fills with bf16 values uniform in [-scale, scale], another sequence for another seed.
void fill_random_bf16(void* data, size_t elements, float scale, unsigned seed, cudaStream_t stream);

}  // namespace outrider::gpu_probe
