// The launchers of kernels, as an engine calls them, and the backend on top.
// Needs no GPU: nothing of this launches a kernel.
#include <cstdio>
#include <memory>

#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include <blockmgr/base/model_layout.h>
#include <blockmgr/kernels/cuda/attention/attention_launch.h>
#include <blockmgr/kernels/cuda/host/cuda_device_runtime.h>
#include <blockmgr/kernels/cuda/host/row_error.h>
#include <blockmgr/kernels/cuda/host/select_problem.h>
#include <blockmgr/kernels/cuda/paged_pool.h>
#include <blockmgr/kernels/cuda/rows/row_mover_launch.h>
#include <blockmgr/kernels/cuda/selection/select_launch.h>

bool UseCuda(const blockmgr::ModelLayout& layout) {
  blockmgr::DecodeParams one_list{};
  one_list.lists.num_sequences = 1;
  one_list.lists.num_heads = 1;
  const blockmgr::RowShape no_such_kernel = {.head_dim = 96};
  blockmgr::MoveRows no_moves{};
  no_moves.pool.num_layers = layout.num_layers;
  no_moves.pool.num_blocks = layout.num_blocks;
  no_moves.pool.num_heads = layout.num_heads;
  no_moves.pool.page_size = layout.page_size;
  no_moves.pool.row_bytes = 256;
  const bool launched =
      blockmgr::LaunchMove(no_moves, 1, nullptr) == cudaSuccess &&
      blockmgr::LaunchSelect(blockmgr::SelectProblem{}, nullptr) ==
          cudaSuccess &&
      blockmgr::LaunchDecodeAttention(one_list, no_such_kernel, nullptr) ==
          cudaErrorInvalidValue;
  const absl::StatusOr<std::unique_ptr<blockmgr::CudaBackend>> backend =
      blockmgr::CreateCudaBackend(layout, {}, 0);
  std::printf("CUDA: %s\n",
              backend.ok() ? "a device" : backend.status().ToString().c_str());
  return launched && blockmgr::RowErrorText(0).empty();
}
