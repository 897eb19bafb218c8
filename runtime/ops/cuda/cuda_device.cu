// The real device behind runtime/ops/gpu/device.h, on the CUDA runtime. Device, streams and graphs;
// every call chooses its device for the calling thread first, so that threads may share one.
#include <cstring>
#include <memory>
#include <string>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/cuda_device.h"
#include "runtime/ops/cuda/platform_cuda.h"

namespace outrider::gpu {
namespace {

// As nvidia-smi writes it, without hyphens.
std::string uuid_text(const cudaUUID_t& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "GPU-";
  for (const char signed_byte : uuid.bytes) {
    const auto byte = static_cast<unsigned char>(signed_byte);
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

// The device itself, shared by what was made on it.
struct Card {
  int ordinal = 0;
  bool overlap = false;
  void use() const { check_cuda(cudaSetDevice(ordinal), "choosing the device"); }
};

class CudaGraph final : public Graph {
 public:
  // Takes the graph over.
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : graph_(graph) {
    try {
      check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "making a graph ready");
      check_cuda(cudaGraphUpload(executable_, stream), "uploading a graph");
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~CudaGraph() override { destroy(); }
  void launch(cudaStream_t stream) const {
    check_cuda(cudaGraphLaunch(executable_, stream), "replaying a graph");
  }

 private:
  void destroy() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  CudaStream(Card card, Priority priority) : card_(card) {
    card_.use();
    int least = 0;
    int greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
    const int wanted = priority == Priority::kHigh ? greatest : least;
    // Non-blocking: nothing waits for the default stream, which nobody uses.
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, wanted),
               "making a stream");
  }
  ~CudaStream() override {
    cudaSetDevice(card_.ordinal);
    if (recording_) {
      cudaGraph_t unfinished = nullptr;
      cudaStreamEndCapture(stream_, &unfinished);
      if (unfinished != nullptr) cudaGraphDestroy(unfinished);
    }
    cudaStreamDestroy(stream_);
  }

  void upload(void* device, const void* pinned, size_t num_bytes) override {
    move(device, pinned, num_bytes, cudaMemcpyHostToDevice, "a copy to the device");
  }
  void download(void* pinned, const void* device, size_t num_bytes) override {
    move(pinned, device, num_bytes, cudaMemcpyDeviceToHost, "a copy from the device");
  }
  void copy(void* to, const void* from, size_t num_bytes) override {
    move(to, from, num_bytes, cudaMemcpyDeviceToDevice, "a copy within the device");
  }
  void fill(void* device, uint8_t byte, size_t num_bytes) override {
    if (num_bytes == 0) return;
    check_cuda(cudaMemsetAsync(device, byte, num_bytes, native()), "filling memory");
  }
  void wait() override {
    OUTRIDER_CHECK(!recording_);
    check_cuda(cudaStreamSynchronize(native()), "what was queued on a stream");
  }
  bool is_done() override {
    OUTRIDER_CHECK(!recording_);
    const cudaError_t result = cudaStreamQuery(native());
    if (result == cudaErrorNotReady) {
      cudaGetLastError();  // it is kept as if it were an error
      return false;
    }
    check_cuda(result, "what was queued on a stream");
    return true;
  }
  // Of this thread only: other threads may allocate meanwhile.
  void begin_recording() override {
    OUTRIDER_CHECK(!recording_);
    check_cuda(cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal),
               "beginning a graph");
    recording_ = true;
  }
  std::unique_ptr<Graph> end_recording() override {
    OUTRIDER_CHECK(recording_);
    recording_ = false;
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(native(), &graph), "ending a graph");
    return std::make_unique<CudaGraph>(graph, stream_);
  }
  void replay(Graph& graph) override { static_cast<CudaGraph&>(graph).launch(native()); }

  cudaStream_t native() const {
    card_.use();
    return stream_;
  }
  const Card& card() const { return card_; }

 private:
  void move(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind, const char* what) {
    if (num_bytes == 0) return;
    check_cuda(cudaMemcpyAsync(to, from, num_bytes, kind, native()), what);
  }

  Card card_;
  cudaStream_t stream_ = nullptr;
  bool recording_ = false;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(Card card) : card_(card) {}

  DeviceInfo info() const override {
    card_.use();
    cudaDeviceProp properties = {};
    check_cuda(cudaGetDeviceProperties(&properties, card_.ordinal), "asking for its properties");
    DeviceInfo info = {.name = properties.name,
                       .uuid = uuid_text(properties.uuid),
                       .ordinal = card_.ordinal,
                       .compute_capability = properties.major * 10 + properties.minor,
                       .num_processors = properties.multiProcessorCount,
                       .l2_bytes = static_cast<size_t>(properties.l2CacheSize)};
    check_cuda(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "asking for free memory");
    return info;
  }

  void* allocate(size_t num_bytes) override {
    card_.use();
    void* memory = nullptr;
    const cudaError_t result = num_bytes == 0 ? cudaSuccess : cudaMalloc(&memory, num_bytes);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not a lasting one
      size_t free_bytes = 0;
      size_t total_bytes = 0;
      cudaMemGetInfo(&free_bytes, &total_bytes);
      throw Error("the GPU has no " + std::to_string(num_bytes) + " bytes left: " +
                  std::to_string(free_bytes) + " of " + std::to_string(total_bytes) + " are free");
    }
    check_cuda(result, "allocating memory");
    return memory;
  }

  void* allocate_pinned(size_t num_bytes) override {
    card_.use();
    if (num_bytes == 0) return nullptr;
    void* memory = nullptr;
    const cudaError_t result =
        cudaHostAlloc(&memory, num_bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw Error("this machine cannot pin " + std::to_string(num_bytes) +
                  " bytes of memory for the GPU");
    }
    check_cuda(result, "pinning host memory");
    void* seen_by_device = nullptr;
    const cudaError_t mapped = cudaHostGetDevicePointer(&seen_by_device, memory, 0);
    if (mapped != cudaSuccess || seen_by_device != memory) {
      cudaFreeHost(memory);
      check_cuda(mapped, "mapping host memory");
      throw Error("this GPU does not see host memory under the host's addresses");
    }
    std::memset(memory, 0, num_bytes);
    return memory;
  }

  void free(void* device) noexcept override {
    cudaSetDevice(card_.ordinal);
    cudaFree(device);
  }
  void free_pinned(void* pinned) noexcept override { cudaFreeHost(pinned); }

  std::unique_ptr<Stream> make_stream(Priority priority) override {
    return std::make_unique<CudaStream>(card_, priority);
  }

  void wait() noexcept override {
    cudaSetDevice(card_.ordinal);
    cudaDeviceSynchronize();
  }

  // By way of the calling thread's own stream: a plain cudaMemcpy may return before the bytes have
  // arrived, and no other stream would wait for it.
  void upload_now(void* device, const void* host, size_t num_bytes) override {
    move_now(device, host, num_bytes, cudaMemcpyHostToDevice);
  }
  void download_now(void* host, const void* device, size_t num_bytes) override {
    move_now(host, device, num_bytes, cudaMemcpyDeviceToHost);
  }

 private:
  void move_now(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind) {
    if (num_bytes == 0) return;
    card_.use();
    check_cuda(cudaMemcpyAsync(to, from, num_bytes, kind, cudaStreamPerThread), "a copy");
    check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "a copy");
  }

  Card card_;
};

}  // namespace

cudaStream_t native_stream(Stream& stream) { return static_cast<CudaStream&>(stream).native(); }
bool overlap_allowed(Stream& stream) { return static_cast<CudaStream&>(stream).card().overlap; }

static int card_attribute(Stream& stream, cudaDeviceAttr attribute) {
  int value = 0;
  const int ordinal = static_cast<CudaStream&>(stream).card().ordinal;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, ordinal), "asking what the GPU has");
  return value;
}

TileMap make_tile_map(Stream& stream, const PackedTiles& tiles) {
  TileMap map{.tiles = tiles, .map = {}};
  if (card_attribute(stream, cudaDevAttrComputeCapabilityMajor) < 9) return map;
  static_cast<CudaStream&>(stream).card().use();  // it wants a context
  static const auto encode = [] {  // from the driver, which is not linked
    constexpr const char* kName = "cuTensorMapEncodeTiled";
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion(kName, &found, 12000, cudaEnableDefault, &result),
               kName);
    if (found == nullptr) throw Error(std::string("the GPU's driver has no ") + kName);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const cuuint64_t sizes[] = {tiles.unit_bytes / 2, tiles.num_units, tiles.num_tiles};
  const cuuint64_t strides[] = {tiles.unit_bytes, uint64_t{tiles.unit_bytes} * tiles.num_units};
  const cuuint32_t part[] = {tiles.unit_bytes / 2, tiles.part_units, tiles.part_tiles};
  const cuuint32_t each[] = {1, 1, 1};
  const CUresult result = encode(&map.map,
                                 CU_TENSOR_MAP_DATA_TYPE_UINT16,
                                 3,
                                 const_cast<void*>(tiles.data),
                                 sizes,
                                 strides,
                                 part,
                                 each,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error("the GPU's driver refused a map of tiles: error " + std::to_string(result));
  return map;
}

size_t block_shared_bytes(Stream& stream) {
  return static_cast<size_t>(card_attribute(stream, cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

std::unique_ptr<Device> make_cuda_device(int ordinal, bool overlap) {
  return std::make_unique<CudaDevice>(Card{ordinal, overlap});
}

}  // namespace outrider::gpu
