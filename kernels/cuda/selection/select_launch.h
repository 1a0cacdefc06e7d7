// Launchers of the selection, and of the index that it reads, for host code
// that knows CUDA. Each enqueues its kernels on `stream`, checks nothing that
// its caller has checked, and returns the first error of a launch.
//
// An eviction of sequences whose tables are on the device, of one layer or of
// all at once (bench/kernel_eviction_cases.cc does it):
//   1. LaunchIndexEntries: lists of entries, from the tables;
//   2. scores of them (attention_launch.h);
//   3. LaunchSelect: budgets and survivors. The host waits for the budgets, and
//      has the new regions' pages laid out (RaggedRegion::LayOut);
//   4. LaunchSelectMoves, with what was laid out: the moves, and the positions
//      of the new regions' entries;
//   5. LaunchMove (row_mover_launch.h): once for all moves if the new regions
//      are on fresh blocks, otherwise with staging, as SelectMoves says.
// The host touches pages and counts, and no entry.
#ifndef KERNELS_CUDA_SELECTION_SELECT_LAUNCH_H_
#define KERNELS_CUDA_SELECTION_SELECT_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {

// longest_tail: tokens. At most 65,535 lists of a layer, and as many layers.
cudaError_t LaunchIndexEntries(const EntryIndexParams& params,
                               int32_t longest_tail, cudaStream_t stream);
cudaError_t LaunchSelect(const SelectProblem& problem, cudaStream_t stream);
cudaError_t LaunchSelectMoves(const SelectMoves& moves, cudaStream_t stream);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_LAUNCH_H_
