// Launchers of the selection and of the index that the selection reads, for
// host code that uses CUDA. Each launcher enqueues its kernels on `stream`. It
// does not check its arguments. It returns the first error of a launch.
//
// An eviction of sequences whose tables are on the device, of one layer or of
// all layers at once, has these steps (bench/kernel_eviction_cases.cc executes
// them):
//
//   1. LaunchIndexEntries makes the lists of entries from the tables: one or
//      two kernels, four if regions are divided into chunks.
//   2. The launchers of attention_launch.h compute scores.
//   3. LaunchSelect computes budgets and survivors: two kernels, four if
//      budgets depend on scores. Divided heads add four, eight with CriticalKV.
//      The host waits for the budgets and lays out the pages of the new regions
//      (RaggedRegion::LayOut).
//   4. LaunchSelectMoves makes the moves from that layout, and the positions of
//      the entries of the new regions: one kernel.
//   5. LaunchMove (row_mover_launch.h) moves the rows: in one launch if the
//      new regions are on fresh blocks, otherwise with staging, as SelectMoves
//      says.
//
// The host handles pages and counts, but no entries.
#ifndef KERNELS_CUDA_SELECTION_SELECT_LAUNCH_H_
#define KERNELS_CUDA_SELECTION_SELECT_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {

// longest_tail is in tokens. A layer has at most 65,535 lists, and there are at
// most as many layers.
cudaError_t LaunchIndexEntries(const EntryIndexParams& params,
                               int32_t longest_tail, cudaStream_t stream);
cudaError_t LaunchSelect(const SelectProblem& problem, cudaStream_t stream);
cudaError_t LaunchSelectMoves(const SelectMoves& moves, cudaStream_t stream);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_LAUNCH_H_
