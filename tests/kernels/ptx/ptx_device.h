// A CUDA device that interprets PTX: its memory, streams, events and graphs, as
// the runtime's API shows them (ptx_cudart.cc).
//
// What is enqueued on a stream runs when somebody waits for it, and not before:
// host code that forgets to wait does not find its results, or overwrites what
// is still to be copied. Everything runs on the thread that waits.
#ifndef TESTS_KERNELS_PTX_PTX_DEVICE_H_
#define TESTS_KERNELS_PTX_PTX_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <cuda_runtime_api.h>

#include "tests/kernels/ptx/ptx_counts.h"
#include "tests/kernels/ptx/ptx_machine.h"
#include "tests/kernels/ptx/ptx_memory.h"
#include "tests/kernels/ptx/ptx_parser.h"

namespace blockmgr::ptx {

using Work = std::function<cudaError_t()>;

}  // namespace blockmgr::ptx

// The runtime declares these types and keeps what is in them to itself.
struct CUstream_st {
  std::deque<blockmgr::ptx::Work> queue;
  bool captures = false;
  bool capture_failed = false;
  std::vector<blockmgr::ptx::Work> captured;
};
struct CUevent_st {
  bool done = false;
  double milliseconds = 0;
};
struct CUgraph_st {
  std::vector<blockmgr::ptx::Work> work;
};
struct CUgraphExec_st {
  std::vector<blockmgr::ptx::Work> work;
};

namespace blockmgr::ptx {

// Changes the text of a kernel before it is read.
using Edit = std::function<void(const std::string& name, std::string* text)>;

// Thread-compatible: the API locks it.
class Device {
 public:
  // As of an H100: what grids are made for.
  static constexpr int kProcessors = 132;
  static constexpr int kSharedBytesPerProcessor = 228 << 10;
  static constexpr int kSharedBytesPerBlock = 227 << 10;
  static constexpr int kSharedBytesByDefault = 48 << 10;
  static constexpr int kThreadsPerProcessor = 2048;

  Device();

  // Host stubs of kernels, as their objects register them.
  void AddFunction(const void* stub, const char* name);
  bool HasFunction(const void* stub) const { return functions_.contains(stub); }
  cudaError_t SetSharedBytes(const void* stub, int bytes);
  cudaError_t Launch(const void* stub, const LaunchShape& shape, void** params,
                     cudaStream_t stream);

  cudaError_t Allocate(std::size_t bytes, void** memory);
  cudaError_t AllocateHost(std::size_t bytes, void** memory);
  cudaError_t Free(void* memory);
  cudaError_t FreeHost(void* memory);
  std::size_t free_bytes() const {
    return DeviceMemory::kCapacity - memory_.used();
  }
  cudaError_t Copy(void* to, const void* from, std::size_t bytes,
                   cudaMemcpyKind kind, cudaStream_t stream);
  cudaError_t Fill(void* to, int value, std::size_t bytes, cudaStream_t stream);

  cudaStream_t CreateStream();
  cudaError_t DestroyStream(cudaStream_t stream);
  cudaError_t Wait(cudaStream_t stream);
  cudaError_t WaitForAll();
  cudaError_t Enqueue(cudaStream_t stream, Work work);
  cudaError_t BeginCapture(cudaStream_t stream);
  cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph);
  bool captures(cudaStream_t stream) { return Find(stream)->captures; }

  // For tests of tests: kernels are read anew, with the edit, and what has
  // failed is forgotten.
  void SetEdit(Edit edit);

  // Once something has failed on the device, everything does.
  cudaError_t lasting_error() const { return lasting_error_; }

 private:
  struct Function {
    std::string name;
    int max_shared_bytes = kSharedBytesByDefault;
    std::shared_ptr<const Kernel> kernel;  // null before the first launch
    LaunchCounts counts;
  };
  struct KernelText {
    const SourceFiles* files;
    const std::string* text;
  };

  cudaStream_t Find(cudaStream_t stream) {
    return stream == nullptr ? &default_stream_ : stream;
  }
  void LoadModules();
  cudaError_t Load(Function& function);
  bool IsPinned(const void* memory, std::size_t bytes) const;
  bool IsOurs(const void* memory, std::size_t bytes) const;
  // What may not be done while a stream captures; it breaks the capture.
  cudaError_t ForbidCapture();
  void WriteCounts() const;

  DeviceMemory memory_;
  std::map<uint64_t, std::size_t> pinned_;
  absl::flat_hash_map<const void*, Function> functions_;
  std::vector<std::unique_ptr<Module>> modules_;
  absl::flat_hash_map<std::string, KernelText> kernels_;
  Edit edit_;
  CUstream_st default_stream_;
  std::set<cudaStream_t> streams_;
  cudaError_t lasting_error_ = cudaSuccess;
  uint64_t num_launches_ = 0;
};

// The one that the process's CUDA runtime has.
Device& TheDevice();

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_DEVICE_H_
