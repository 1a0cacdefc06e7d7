// Calling blockmgr's CUDA kernels on the KV tensors of an engine: what
// docs/kernels.md shows, as host code that is compiled with every build.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/rows/row_mover_launch.h"

// Writes the keys and values of a step's new tokens to one layer of the
// tensors that vLLM has since 0.29, one per layer. All pointers are device
// memory.
cudaError_t AppendTokens(const blockmgr::ModelLayout& layout,
                         char* const* layer_tensors, int32_t layer,
                         const char* keys, const char* values,
                         const int64_t* slot_mapping, int64_t num_tokens,
                         uint32_t* error, cudaStream_t stream) {
  blockmgr::PagedPool pool = blockmgr::MakePagedPool(
      layout,
      blockmgr::KvPoolLayout::Of(layout, blockmgr::KvTensorOrder::kNhdPairs),
      nullptr);
  pool.layer_bases = layer_tensors;  // device array of addresses, [num_layers]

  blockmgr::AppendRows append;
  append.pool = pool;
  append.layer = layer;
  append.num_tokens = num_tokens;
  append.slot_mapping = slot_mapping;  // [num_tokens]
  append.keys = keys;                  // [num_tokens, num_heads, head_dim]
  append.values = values;
  append.token_stride = layout.num_heads * layout.row_bytes();
  append.head_stride = layout.row_bytes();
  append.error = error;
  constexpr uint32_t kMultiprocessors = 132;  // of an H100
  return blockmgr::LaunchAppend(
      append, blockmgr::RowConversion::kNone,
      blockmgr::kRowBlocksPerProcessor * kMultiprocessors, stream);
}
