#include "tests/kernels/ptx/ptx_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include <absl/strings/str_split.h>

#include "blockmgr/base/read_file.h"

namespace blockmgr::ptx {
namespace {

uint64_t AddressOf(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

}  // namespace

Device::Device() {
  streams_.insert(&default_stream_);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment
  if (std::getenv("BLOCKMGR_PTX_COUNTS") != nullptr) {
    static const Device* device = nullptr;
    device = this;
    std::atexit([] { device->WriteCounts(); });
  }
}

void Device::AddFunction(const void* stub, const char* name) {
  functions_[stub].name = name;
}

cudaError_t Device::SetSharedBytes(const void* stub, int bytes) {
  const auto it = functions_.find(stub);
  if (it == functions_.end()) return cudaErrorInvalidDeviceFunction;
  if (bytes < 0 || bytes > kSharedBytesPerBlock) return cudaErrorInvalidValue;
  it->second.max_shared_bytes = bytes;
  return cudaSuccess;
}

void Device::LoadModules() {
  for (const absl::string_view path :
       absl::StrSplit(BLOCKMGR_PTX_MODULES, ':', absl::SkipEmpty())) {
    const absl::StatusOr<std::string> text = ReadFile(std::string(path));
    absl::StatusOr<Module> module =
        text.ok() ? ReadModule(*text) : text.status();
    if (!module.ok()) {
      std::cerr << path << ": " << module.status() << '\n';
      continue;
    }
    modules_.push_back(std::make_unique<Module>(*std::move(module)));
    for (const auto& [name, kernel] : modules_.back()->kernels) {
      kernels_[name] = {.files = &modules_.back()->files, .text = &kernel};
    }
  }
}

cudaError_t Device::Load(Function& function) {
  if (function.kernel != nullptr) return cudaSuccess;
  if (modules_.empty()) LoadModules();
  const auto it = kernels_.find(function.name);
  if (it == kernels_.end()) {
    std::cerr << "no PTX of " << function.name << '\n';
    return cudaErrorInvalidDeviceFunction;
  }
  std::string text = *it->second.text;
  if (edit_) edit_(function.name, &text);
  absl::StatusOr<Kernel> kernel =
      ParseKernel(function.name, text, *it->second.files);
  if (!kernel.ok()) {
    std::cerr << kernel.status() << '\n';
    return cudaErrorInvalidPtx;
  }
  function.kernel = std::make_shared<const Kernel>(*std::move(kernel));
  return cudaSuccess;
}

cudaError_t Device::Launch(const void* stub, const LaunchShape& shape,
                           void** params, cudaStream_t stream) {
  const auto it = functions_.find(stub);
  if (it == functions_.end()) return cudaErrorInvalidDeviceFunction;
  Function& function = it->second;
  if (const cudaError_t error = Load(function); error != cudaSuccess) {
    return error;
  }
  const Kernel& kernel = *function.kernel;
  if (const absl::Status status = CheckShape(kernel, shape); !status.ok()) {
    std::cerr << status << '\n';
    return cudaErrorInvalidConfiguration;
  }
  if (shape.shared_bytes > static_cast<uint32_t>(function.max_shared_bytes)) {
    return cudaErrorInvalidValue;
  }
  // The host may change them as soon as this returns.
  std::vector<std::byte> copy(kernel.param_bytes);
  for (std::size_t i = 0; i < kernel.param_offsets.size(); ++i) {
    std::memcpy(copy.data() + kernel.param_offsets[i], params[i],
                kernel.param_sizes[i]);
  }
  return Enqueue(stream, [this, stub, shape, copy = std::move(copy)] {
    Function& launched = functions_.at(stub);
    ++launched.counts.launches;
    const absl::Status status =
        RunKernel(*launched.kernel, shape, copy.data(), memory_,
                  ++num_launches_, launched.counts);
    if (status.ok()) return cudaSuccess;
    std::cerr << status << '\n';
    return cudaErrorIllegalAddress;
  });
}

cudaError_t Device::Allocate(std::size_t bytes, void** memory) {
  if (const cudaError_t error = ForbidCapture(); error != cudaSuccess) {
    return error;
  }
  *memory = memory_.Allocate(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t Device::AllocateHost(std::size_t bytes, void** memory) {
  if (const cudaError_t error = ForbidCapture(); error != cudaSuccess) {
    return error;
  }
  *memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  pinned_[AddressOf(*memory)] = bytes;
  return cudaSuccess;
}

// Waits, as the real one does.
cudaError_t Device::Free(void* memory) {
  if (const cudaError_t error = ForbidCapture(); error != cudaSuccess) {
    return error;
  }
  const cudaError_t error = WaitForAll();
  if (memory != nullptr && !memory_.Free(memory)) return cudaErrorInvalidValue;
  return error;
}

cudaError_t Device::FreeHost(void* memory) {
  const cudaError_t error = WaitForAll();
  if (memory != nullptr && pinned_.erase(AddressOf(memory)) == 0) {
    return cudaErrorInvalidValue;
  }
  std::free(memory);
  return error;
}

bool Device::IsPinned(const void* memory, std::size_t bytes) const {
  auto it = pinned_.upper_bound(AddressOf(memory));
  if (it == pinned_.begin()) return false;
  it = std::prev(it);
  return AddressOf(memory) + bytes <= it->first + it->second;
}

bool Device::IsOurs(const void* memory, std::size_t bytes) const {
  return memory_.Contains(AddressOf(memory), bytes);
}

// Pageable memory of the host is read before the call returns, or written: a
// graph cannot have that.
cudaError_t Device::Copy(void* to, const void* from, std::size_t bytes,
                         cudaMemcpyKind kind, cudaStream_t stream) {
  const bool to_ours = kind != cudaMemcpyDeviceToHost;
  const bool from_ours = kind != cudaMemcpyHostToDevice;
  if ((to_ours && !IsOurs(to, bytes)) || (from_ours && !IsOurs(from, bytes))) {
    return cudaErrorInvalidValue;
  }
  const bool pageable = (!to_ours && !IsPinned(to, bytes)) ||
                        (!from_ours && !IsPinned(from, bytes));
  const auto copy = [=] {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  };
  if (!pageable) return Enqueue(stream, copy);
  if (captures(stream)) {
    Find(stream)->capture_failed = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (to_ours) {
    std::vector<std::byte> bytes_now(bytes);
    std::memcpy(bytes_now.data(), from, bytes);
    return Enqueue(stream, [to, kept = std::move(bytes_now)] {
      std::memcpy(to, kept.data(), kept.size());
      return cudaSuccess;
    });
  }
  const cudaError_t error = Enqueue(stream, copy);
  return error == cudaSuccess ? Wait(stream) : error;
}

cudaError_t Device::Fill(void* to, int value, std::size_t bytes,
                         cudaStream_t stream) {
  if (!IsOurs(to, bytes)) return cudaErrorInvalidValue;
  return Enqueue(stream, [=] {
    std::memset(to, value, bytes);
    return cudaSuccess;
  });
}

cudaStream_t Device::CreateStream() {
  return *streams_.insert(std::make_unique<CUstream_st>().release()).first;
}

cudaError_t Device::DestroyStream(cudaStream_t stream) {
  if (stream == nullptr || !streams_.contains(stream)) {
    return cudaErrorInvalidResourceHandle;
  }
  const cudaError_t error = Wait(stream);
  streams_.erase(stream);
  std::default_delete<CUstream_st>()(stream);
  return error;
}

cudaError_t Device::Enqueue(cudaStream_t stream, Work work) {
  stream = Find(stream);
  if (!streams_.contains(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->captures) {
    stream->captured.push_back(std::move(work));
  } else {
    stream->queue.push_back(std::move(work));
  }
  return cudaSuccess;
}

cudaError_t Device::Wait(cudaStream_t stream) {
  stream = Find(stream);
  if (!streams_.contains(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->captures) {
    stream->capture_failed = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  while (!stream->queue.empty()) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (lasting_error_ == cudaSuccess) lasting_error_ = work();
  }
  return lasting_error_;
}

cudaError_t Device::WaitForAll() {
  for (const cudaStream_t stream : streams_) {
    if (const cudaError_t error = Wait(stream); error != cudaSuccess) {
      return error;
    }
  }
  return lasting_error_;
}

cudaError_t Device::ForbidCapture() {
  for (const cudaStream_t stream : streams_) {
    if (!stream->captures) continue;
    stream->capture_failed = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

cudaError_t Device::BeginCapture(cudaStream_t stream) {
  // The default stream cannot.
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  if (!streams_.contains(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->captures) return cudaErrorIllegalState;
  stream->captures = true;
  stream->capture_failed = false;
  stream->captured.clear();
  return cudaSuccess;
}

cudaError_t Device::EndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr || !streams_.contains(stream) || !stream->captures) {
    return cudaErrorIllegalState;
  }
  stream->captures = false;
  if (stream->capture_failed) return cudaErrorStreamCaptureInvalidated;
  *graph = std::make_unique<CUgraph_st>().release();
  (*graph)->work = std::exchange(stream->captured, {});
  return cudaSuccess;
}

void Device::SetEdit(Edit edit) {
  edit_ = std::move(edit);
  for (auto& [stub, function] : functions_) function.kernel = nullptr;
  // What was behind a failure never ran.
  for (const cudaStream_t stream : streams_) stream->queue.clear();
  lasting_error_ = cudaSuccess;
}

void Device::WriteCounts() const {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment
  std::ofstream out(std::getenv("BLOCKMGR_PTX_COUNTS"));
  std::map<std::string, LaunchCounts> by_name;
  for (const auto& [stub, function] : functions_) {
    if (function.counts.launches > 0) by_name[function.name] += function.counts;
  }
  for (const auto& [name, counts] : by_name) {
    out << name << ' ' << counts.ToString() << '\n';
  }
}

}  // namespace blockmgr::ptx
