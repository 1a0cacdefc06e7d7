// KernelInputs: a problem on a device, for every case of the benchmark.
#ifndef BENCH_KERNEL_INPUTS_H_
#define BENCH_KERNEL_INPUTS_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "bench/device_memory.h"
#include "bench/kernel_problem.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/list_splits.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

// A launch of scores takes at most so many lists (attention_launch.h).
inline constexpr int64_t kMaxDeviceLists = 65535;

// The names of kAllKvTensorOrders.
inline constexpr std::array<absl::string_view, 7> kTensorOrderNames = {
    "pages", "hnd", "nhd", "hnd-apart", "nhd-apart", "hnd-pairs", "nhd-pairs"};
// REQUIRES: the name is one of kTensorOrderNames.
KvTensorOrder TensorOrderNamed(absl::string_view name);

struct DeviceProblemOptions {
  // The pool is copied until all copies have so many bytes of K and V together.
  // There are one to 16 copies.
  int64_t rotated_bytes = 0;
  // Columns of the output projection; Llama-3.1-8B has 4096.
  int32_t model_dim = 4096;
  // The places of the rows in the memory of the pool. In every order, element i
  // of this memory is Element(seed, i) of kernel_problem.h.
  KvTensorOrder tensor_order = KvTensorOrder::kPages;
};

// KernelInputs is a problem and its copies on a device. It is made once, and
// all cases share it. All pointers are device pointers.
struct KernelInputs {
  // snapkv's default window. Every sequence is at least as long.
  static constexpr int32_t kWindow = 32;

  int32_t num_copies() const { return static_cast<int32_t>(pools.size()); }
  PagedPool PoolOf(int32_t copy) const;
  int64_t num_lists() const {
    return static_cast<int64_t>(problem.lengths.size());
  }
  int64_t num_q_heads() const { return num_lists() * problem.group_size; }
  int64_t num_entries() const { return std::ssize(slots); }
  // Bytes of K and V of all entries.
  double kv_bytes() const { return static_cast<double>(problem.kv_bytes()); }
  // Bytes of a row of K and a row of V.
  double pair_bytes() const {
    return 2.0 * static_cast<double>(problem.row_bytes());
  }
  // The factor on the products of queries and keys.
  float scale() const {
    return 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  }
  int32_t page_shift() const { return problem.page_size == 32 ? 5 : 4; }
  int32_t tail_length(int64_t list) const {
    return problem.tail_lengths[list / problem.num_heads];
  }
  int32_t list_length(int64_t list) const {
    return problem.lengths[list] + tail_length(list);
  }

  KernelProblem problem;
  int32_t model_dim = 0;
  KvTensorOrder tensor_order = KvTensorOrder::kPages;
  RowShape shape;
  int32_t num_blocks = 0;  // of a pool
  // Copies of the pool. Launches that take them in turn find nothing in the
  // second-level cache.
  std::vector<char*> pools;
  // Half a pool for every copy. Cases copy rows to it, and take rows that they
  // append from it. It is filled with elements, because zeros would cost less
  // power.
  std::vector<char*> besides;
  uint16_t* queries = nullptr;
  uint16_t* output = nullptr;  // of decode attention
  uint32_t* error = nullptr;   // the word of RowError

  // The lists with their tails, as kernels of attention read them.
  AttentionLists lists;
  int32_t longest_tail = 0;  // tokens
  // The pages of every list: those of its region, then those of its tail.
  std::vector<int32_t> pages;
  std::vector<int64_t> page_offsets;        // [num_lists + 1]
  std::vector<int64_t> tail_block_offsets;  // [num_sequences + 1]

  // The entries of the lists, as kernels of eviction read them.
  EntryLists entries;
  std::vector<int64_t> slots;    // [num_entries]
  std::vector<int64_t> offsets;  // [num_lists + 1]
  // The length of every sequence: that of its longest list, or kWindow.
  std::vector<int32_t> sequence_lengths;
  int32_t max_length = 0;      // of a sequence
  int32_t* lengths = nullptr;  // sequence_lengths on the device
  float* scores = nullptr;     // [num_entries], for cases to write
};

// Returns ResourceExhausted if the memory has no room.
absl::StatusOr<KernelInputs> MakeKernelInputs(
    const KernelProblem& problem, const DeviceProblemOptions& options,
    DeviceMemory& memory);

// Splits lists that begin at offsets[0 .. size - 2] and end where the next one
// begins. Sends the splits to the device.
ListSplits SendSplits(std::span<const int64_t> offsets, int32_t split_entries,
                      int32_t min_splits, DeviceMemory& memory);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_INPUTS_H_
