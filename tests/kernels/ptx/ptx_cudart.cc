// The part of the CUDA runtime's API that this project calls, on the device
// that interprets PTX. Linked before the real runtime, of which nothing is left
// then: programs, tests and nvcc's host objects are the same.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>

#include <cuda_runtime_api.h>

#include "tests/kernels/ptx/ptx_device.h"

namespace {

using blockmgr::ptx::Device;
using blockmgr::ptx::LaunchShape;

struct Runtime {
  std::mutex mutex;
  Device device;
  cudaError_t last_error = cudaSuccess;
};

// Never destroyed: programs call the runtime to their very end.
Runtime& TheRuntime() {
  static auto* const kRuntime = new Runtime;
  return *kRuntime;
}

// Of the call of this thread that is under way.
struct CallConfiguration {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local CallConfiguration configuration;

// What `call` returns, unless everything fails already; remembered for
// cudaGetLastError.
template <typename Call>
cudaError_t Do(const Call& call) {
  Runtime& runtime = TheRuntime();
  const std::lock_guard lock(runtime.mutex);
  cudaError_t error = runtime.device.lasting_error();
  if (error == cudaSuccess) error = call(runtime.device);
  if (error != cudaSuccess) runtime.last_error = error;
  return error;
}

template <typename T>
cudaError_t Delete(T* handle) {
  if (handle == nullptr) return cudaErrorInvalidResourceHandle;
  std::default_delete<T>()(handle);
  return cudaSuccess;
}

}  // namespace

namespace blockmgr::ptx {

Device& TheDevice() { return TheRuntime().device; }

}  // namespace blockmgr::ptx

extern "C" {

void** CUDARTAPI __cudaRegisterFatBinary(void* binary) {
  return reinterpret_cast<void**>(binary);
}
void CUDARTAPI __cudaRegisterFatBinaryEnd(void**) {}
void CUDARTAPI __cudaUnregisterFatBinary(void**) {}
void CUDARTAPI __cudaRegisterFunction(void**, const char* stub, char*,
                                      const char* name, int, uint3*, uint3*,
                                      dim3*, dim3*, int*) {
  TheRuntime().device.AddFunction(stub, name);
}
unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                               std::size_t shared_bytes,
                                               CUstream_st* stream) {
  configuration = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                 std::size_t* shared_bytes,
                                                 void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  std::memcpy(stream, &configuration.stream, sizeof(configuration.stream));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                          const void* stub, void** params) {
  return Do([&](Device& device) {
    const dim3& grid = config->gridDim;
    const dim3& block = config->blockDim;
    if (block.y != 1 || block.z != 1) return cudaErrorInvalidConfiguration;
    LaunchShape shape = {
        .grid = {grid.x, grid.y, grid.z},
        .threads = block.x,
        .shared_bytes = static_cast<uint32_t>(config->dynamicSmemBytes)};
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const cudaLaunchAttribute& attribute = config->attrs[i];
      if (attribute.id != cudaLaunchAttributeProgrammaticStreamSerialization) {
        return cudaErrorNotSupported;
      }
      shape.overlaps =
          attribute.val.programmaticStreamSerializationAllowed != 0;
    }
    return device.Launch(stub, shape, params, config->stream);
  });
}
cudaError_t CUDARTAPI cudaLaunchKernel(const void* stub, dim3 grid, dim3 block,
                                       void** params, std::size_t shared_bytes,
                                       cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelExC(&config, stub, params);
}
// A kernel's handle is its stub.
cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  return Do([&](Device& device) {
    std::memcpy(kernel, &stub, sizeof(stub));
    return device.HasFunction(stub) ? cudaSuccess
                                    : cudaErrorInvalidDeviceFunction;
  });
}
cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid,
                                         dim3 block, void** params,
                                         std::size_t shared_bytes,
                                         cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block,
                          params, shared_bytes, stream);
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* stub,
                                           cudaFuncAttribute attribute,
                                           int value) {
  return Do([&](Device& device) {
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
      return device.SetSharedBytes(stub, value);
    }
    return attribute == cudaFuncAttributePreferredSharedMemoryCarveout &&
                   value >= -1 && value <= 100
               ? cudaSuccess
               : cudaErrorInvalidValue;
  });
}
cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                            const void* stub) {
  return Do([&](Device& device) {
    *attributes = cudaFuncAttributes();
    attributes->ptxVersion = BLOCKMGR_PTX_ARCHITECTURE;
    return device.HasFunction(stub) ? cudaSuccess
                                    : cudaErrorInvalidDeviceFunction;
  });
}
// Registers are not known here.
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* num_blocks, const void*, int threads, std::size_t shared_bytes) {
  constexpr int kReserved = 1 << 10;  // bytes of each block
  return Do([&](Device&) {
    const int by_shared = Device::kSharedBytesPerProcessor /
                          (static_cast<int>(shared_bytes) + kReserved);
    *num_blocks = std::min(by_shared, Device::kThreadsPerProcessor / threads);
    return cudaSuccess;
  });
}
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* num_blocks, const void* stub, int threads, std::size_t shared_bytes,
    unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks, stub,
                                                       threads, shared_bytes);
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  *count = 1;
  return Do([](Device&) { return cudaSuccess; });
}
cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaSetDevice(int number) {
  return Do([&](Device&) {
    return number == 0 ? cudaSuccess : cudaErrorInvalidDevice;
  });
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value,
                                             cudaDeviceAttr attribute, int) {
  return Do([&](Device&) {
    if (attribute != cudaDevAttrMultiProcessorCount) {
      return cudaErrorInvalidValue;
    }
    *value = Device::kProcessors;
    return cudaSuccess;
  });
}
cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* properties,
                                              int number) {
  if (number != 0) return cudaErrorInvalidDevice;
  *properties = cudaDeviceProp();
  std::strcpy(properties->name, "interpreter of PTX, not a GPU");
  properties->major = 9;
  properties->multiProcessorCount = Device::kProcessors;
  properties->sharedMemPerBlockOptin = Device::kSharedBytesPerBlock;
  properties->totalGlobalMem = blockmgr::ptx::DeviceMemory::kCapacity;
  // Small: programs rotate their buffers past it.
  properties->l2CacheSize = 1 << 16;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMalloc(void** memory, std::size_t bytes) {
  return Do([&](Device& device) { return device.Allocate(bytes, memory); });
}
cudaError_t CUDARTAPI cudaMallocManaged(void** memory, std::size_t bytes,
                                        unsigned) {
  return Do([&](Device& device) { return device.Allocate(bytes, memory); });
}
cudaError_t CUDARTAPI cudaHostAlloc(void** memory, std::size_t bytes,
                                    unsigned) {
  return Do([&](Device& device) { return device.AllocateHost(bytes, memory); });
}
cudaError_t CUDARTAPI cudaFree(void* memory) {
  return Do([&](Device& device) { return device.Free(memory); });
}
cudaError_t CUDARTAPI cudaFreeHost(void* memory) {
  return Do([&](Device& device) { return device.FreeHost(memory); });
}
cudaError_t CUDARTAPI cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return Do([&](Device& device) {
    *free = device.free_bytes();
    *total = blockmgr::ptx::DeviceMemory::kCapacity;
    return cudaSuccess;
  });
}
cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from,
                                      std::size_t bytes, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return Do([&](Device& device) {
    return device.Copy(to, from, bytes, kind, stream);
  });
}
cudaError_t CUDARTAPI cudaMemcpy2DAsync(void* to, std::size_t to_pitch,
                                        const void* from,
                                        std::size_t from_pitch,
                                        std::size_t width, std::size_t height,
                                        cudaMemcpyKind kind,
                                        cudaStream_t stream) {
  return Do([&](Device& device) {
    cudaError_t error = cudaSuccess;
    for (std::size_t row = 0; row < height && error == cudaSuccess; ++row) {
      error = device.Copy(static_cast<char*>(to) + row * to_pitch,
                          static_cast<const char*>(from) + row * from_pitch,
                          width, kind, stream);
    }
    return error;
  });
}
cudaError_t CUDARTAPI cudaMemsetAsync(void* to, int value, std::size_t bytes,
                                      cudaStream_t stream) {
  return Do(
      [&](Device& device) { return device.Fill(to, value, bytes, stream); });
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream,
                                                unsigned) {
  return Do([&](Device& device) {
    *stream = device.CreateStream();
    return cudaSuccess;
  });
}
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  return Do([&](Device& device) { return device.DestroyStream(stream); });
}
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  return Do([&](Device& device) { return device.Wait(stream); });
}
cudaError_t CUDARTAPI cudaDeviceSynchronize() {
  return Do([](Device& device) { return device.WaitForAll(); });
}
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream,
                                            cudaStreamCaptureStatus* status) {
  return Do([&](Device& device) {
    *status = device.captures(stream) ? cudaStreamCaptureStatusActive
                                      : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}
cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream,
                                             cudaStreamCaptureMode) {
  return Do([&](Device& device) { return device.BeginCapture(stream); });
}
cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream,
                                           cudaGraph_t* graph) {
  return Do([&](Device& device) { return device.EndCapture(stream, graph); });
}
cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec,
                                                    cudaGraph_t graph,
                                                    unsigned long long) {
  return Do([&](Device&) {
    auto made = std::make_unique<CUgraphExec_st>();
    made->work = graph->work;
    *exec = made.release();
    return cudaSuccess;
  });
}
cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t exec,
                                      cudaStream_t stream) {
  return Do([&](Device& device) {
    cudaError_t error = cudaSuccess;
    for (const auto& work : exec->work) {
      if (error == cudaSuccess) error = device.Enqueue(stream, work);
    }
    return error;
  });
}
// How many there are: nodes have no handles here.
cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph,
                                        cudaGraphNode_t* nodes,
                                        std::size_t* count) {
  if (graph == nullptr || nodes != nullptr) return cudaErrorInvalidValue;
  *count = graph->work.size();
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
  return Delete(graph);
}
cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return Delete(exec);
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
  *event = std::make_unique<CUevent_st>().release();
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  static_cast<void>(cudaDeviceSynchronize());
  return Delete(event);
}
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Do([&](Device& device) {
    event->done = false;
    return device.Enqueue(stream, [event] {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      event->milliseconds =
          std::chrono::duration<double, std::milli>(now).count();
      event->done = true;
      return cudaSuccess;
    });
  });
}
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t) {
  return cudaDeviceSynchronize();
}
// Of the interpreter.
cudaError_t CUDARTAPI cudaEventElapsedTime(float* milliseconds,
                                           cudaEvent_t begin, cudaEvent_t end) {
  return Do([&](Device&) {
    if (!begin->done || !end->done) return cudaErrorNotReady;
    *milliseconds = static_cast<float>(end->milliseconds - begin->milliseconds);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGetLastError() {
  Runtime& runtime = TheRuntime();
  const std::lock_guard lock(runtime.mutex);
  const cudaError_t error = runtime.last_error;
  runtime.last_error = runtime.device.lasting_error();
  return error;
}
const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorIllegalAddress:
      return "a kernel failed; the interpreter has said where";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "an error of the interpreter's runtime";
  }
}

}  // extern "C"
