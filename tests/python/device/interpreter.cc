// The interpreter of compiled CUDA kernels (tests/kernels/ptx) as the devices
// of blockmgr.cuda: the code for a GPU, on the part of CUDA's runtime that
// tests have, with its streams and graphs.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include "kernels/cuda/host/cuda_device_runtime.h"
#include "python/core/cuda_devices.h"

namespace nb = nanobind;

namespace blockmgr::python {
namespace {

absl::Status Probe() { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<DeviceRuntime>> Create(int32_t device) {
  return CreateCudaRuntime(device, nullptr);
}

DeviceSource interpreted = {.probe = Probe, .create = Create};

void Check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw nb::value_error(("CUDA error " + std::to_string(error)).c_str());
  }
}

template <typename Handle>
uintptr_t NumberOf(Handle handle) {
  return reinterpret_cast<uintptr_t>(handle);
}

uintptr_t Allocate(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal));
  return NumberOf(memory);
}

uintptr_t MakeStream() {
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return NumberOf(stream);
}

void BeginCapture(uintptr_t stream) {
  Check(cudaStreamBeginCapture(reinterpret_cast<cudaStream_t>(stream),
                               cudaStreamCaptureModeGlobal));
}

// Returns a graph that can be launched.
uintptr_t EndCapture(uintptr_t stream) {
  cudaGraph_t graph = nullptr;
  Check(cudaStreamEndCapture(reinterpret_cast<cudaStream_t>(stream), &graph));
  cudaGraphExec_t exec = nullptr;
  Check(cudaGraphInstantiateWithFlags(&exec, graph, 0));
  Check(cudaGraphDestroy(graph));
  return NumberOf(exec);
}

void Launch(uintptr_t graph, uintptr_t stream) {
  Check(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph),
                        reinterpret_cast<cudaStream_t>(stream)));
}

}  // namespace
}  // namespace blockmgr::python

NB_MODULE(_interpreter, m) {
  namespace python = blockmgr::python;
  m.def("devices",
        [] { return nb::capsule(&python::interpreted, "DeviceSource"); });
  m.def("allocate", &python::Allocate);
  m.def("make_stream", &python::MakeStream);
  m.def("begin_capture", &python::BeginCapture);
  m.def("end_capture", &python::EndCapture);
  m.def("launch", &python::Launch);
}
