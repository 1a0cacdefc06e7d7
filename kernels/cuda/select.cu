// Instances and launchers of the selection.
#include "kernels/cuda/select_launch.h"
#include "kernels/cuda/select_sequence.cuh"

namespace blockmgr {
namespace {

class Launcher {
 public:
  explicit Launcher(cudaStream_t stream) : stream_(stream) {}

  template <typename... Params, typename... Arguments>
  bool operator()(const SelectGrid& grid, void (*kernel)(Params...),
                  const Arguments&... arguments) {
    kernel<<<dim3(grid.x, grid.y), grid.threads, grid.shared_bytes, stream_>>>(
        arguments...);
    error_ = cudaGetLastError();
    return error_ == cudaSuccess;
  }

  cudaError_t error() const { return error_; }

 private:
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace

cudaError_t LaunchSelect(const SelectProblem& problem, cudaStream_t stream) {
  Launcher launcher(stream);
  RunSelect(problem, launcher);
  return launcher.error();
}

cudaError_t LaunchSelectMoves(const SelectMoves& moves, cudaStream_t stream) {
  Launcher launcher(stream);
  RunSelectMoves(moves, launcher);
  return launcher.error();
}

}  // namespace blockmgr
