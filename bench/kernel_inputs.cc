#include "bench/kernel_inputs.h"

#include <algorithm>
#include <cstddef>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/host/device_pool.h"

namespace blockmgr {
namespace {

constexpr int32_t kMaxCopies = 16;

void FillPools(int64_t rotated_bytes, KernelInputs& in, DeviceMemory& memory) {
  const KernelProblem& problem = in.problem;
  const auto elements = [&](int64_t count, uint64_t seed) {
    return memory.AllocateElements(count, problem.seed + seed,
                                   problem.element_type);
  };
  const int64_t num_elements = int64_t{in.num_blocks} * problem.num_heads * 2 *
                               problem.page_size * problem.head_dim;
  const int64_t num_copies = std::clamp<int64_t>(
      CeilDiv(rotated_bytes, problem.kv_bytes()), 1, kMaxCopies);
  // Half a pool has whole blocks.
  const int64_t num_beside =
      int64_t{(in.num_blocks + 1) / 2} * (num_elements / in.num_blocks);
  for (int64_t copy = 0; copy < num_copies; ++copy) {
    in.pools.push_back(reinterpret_cast<char*>(elements(num_elements, 0)));
    in.besides.push_back(reinterpret_cast<char*>(elements(num_beside, 5)));
  }
  in.queries = elements(in.num_q_heads() * problem.head_dim, 1);
  in.output = memory.Allocate<uint16_t>(in.num_q_heads() * problem.head_dim);
  in.error = memory.Allocate<uint32_t>(1);
}

void SendLists(KernelInputs& in, DeviceMemory& memory) {
  const KernelProblem& problem = in.problem;
  AttentionLists& lists = in.lists;
  lists.tail_stride = 1;
  in.tail_block_offsets.push_back(0);
  for (const int32_t length : problem.tail_lengths) {
    const int32_t num_blocks = CeilDiv(length, problem.page_size);
    lists.tail_stride = std::max<int64_t>(lists.tail_stride, num_blocks);
    in.longest_tail = std::max(in.longest_tail, length);
    in.tail_block_offsets.push_back(in.tail_block_offsets.back() + num_blocks);
  }
  std::vector<int32_t> tail_blocks(problem.num_sequences * lists.tail_stride);
  for (int32_t s = 0; s < problem.num_sequences; ++s) {
    std::copy(problem.tail_blocks.begin() + in.tail_block_offsets[s],
              problem.tail_blocks.begin() + in.tail_block_offsets[s + 1],
              tail_blocks.begin() + s * lists.tail_stride);
  }
  std::vector<int64_t> region_offsets;
  int64_t page = 0;
  in.page_offsets.push_back(0);
  for (int64_t list = 0; list < in.num_lists(); ++list) {
    region_offsets.push_back(page);
    const auto first = problem.page_ids.begin() + page;
    const int32_t num_pages = CeilDiv(problem.lengths[list], problem.page_size);
    in.pages.insert(in.pages.end(), first, first + num_pages);
    page += num_pages;
    const int64_t s = list / problem.num_heads;
    for (int64_t i = in.tail_block_offsets[s]; i < in.tail_block_offsets[s + 1];
         ++i) {
      in.pages.push_back(problem.tail_blocks[i] * problem.num_heads +
                         static_cast<int32_t>(list % problem.num_heads));
    }
    in.page_offsets.push_back(std::ssize(in.pages));
  }
  lists.num_sequences = problem.num_sequences;
  lists.num_heads = problem.num_heads;
  lists.region_lengths = memory.Send<int32_t>(problem.lengths);
  lists.region_offsets = memory.Send<int64_t>(region_offsets);
  lists.region_pages = memory.Send<int32_t>(problem.page_ids);
  lists.tail_blocks = memory.Send<int32_t>(tail_blocks);
  lists.tail_lengths = memory.Send<int32_t>(problem.tail_lengths);
}

// The entries of a tail are the last tokens of its sequence.
void SendEntries(KernelInputs& in, DeviceMemory& memory) {
  const KernelProblem& problem = in.problem;
  const int32_t page_size = problem.page_size;
  std::vector<int32_t> positions;
  in.sequence_lengths.assign(problem.num_sequences, KernelInputs::kWindow);
  for (int64_t list = 0; list < in.num_lists(); ++list) {
    int32_t& length = in.sequence_lengths[list / problem.num_heads];
    length = std::max(length, in.list_length(list));
  }
  in.offsets.push_back(0);
  for (int64_t list = 0; list < in.num_lists(); ++list) {
    const int32_t region = problem.lengths[list];
    const int32_t cut =
        in.sequence_lengths[list / problem.num_heads] - in.tail_length(list);
    // The tail begins on a page of its own.
    const int32_t tail_rank = CeilDiv(region, page_size) * page_size;
    for (int32_t i = 0; i < in.list_length(list); ++i) {
      const int32_t rank = i < region ? i : tail_rank + i - region;
      const int64_t page = in.pages[in.page_offsets[list] + rank / page_size];
      in.slots.push_back(page * page_size + rank % page_size);
      positions.push_back(i < region ? i : cut + i - region);
    }
    in.offsets.push_back(in.num_entries());
  }
  in.max_length = *std::ranges::max_element(in.sequence_lengths);
  EntryLists& entries = in.entries;
  entries.num_sequences = problem.num_sequences;
  entries.num_heads = problem.num_heads;
  entries.offsets = memory.Send<int64_t>(in.offsets);
  entries.slots = memory.Send<int64_t>(in.slots);
  entries.positions = memory.Send<int32_t>(positions);
  entries.row_splits = SendSplits(in.offsets, kRowSplitEntries, 0, memory);
  entries.window_splits = SendSplits(in.offsets, kSplitEntries, 0, memory);
  in.lengths = memory.Send<int32_t>(in.sequence_lengths);
  in.scores = memory.Allocate<float>(in.num_entries());
}

}  // namespace

KvTensorOrder TensorOrderNamed(absl::string_view name) {
  const auto it = std::ranges::find(kTensorOrderNames, name);
  BM_CHECK(it != kTensorOrderNames.end());
  return kAllKvTensorOrders[it - kTensorOrderNames.begin()];
}

PagedPool KernelInputs::PoolOf(int32_t copy) const {
  ModelLayout layout;
  layout.num_layers = 1;
  layout.num_heads = problem.num_heads;
  layout.head_dim = problem.head_dim;
  layout.page_size = problem.page_size;
  layout.num_blocks = num_blocks;
  layout.dtype = problem.element_type == ElementType::kHalf ? DType::kFloat16
                                                            : DType::kBFloat16;
  return MakePagedPool(layout, KvPoolLayout::Of(layout, tensor_order),
                       pools[copy]);
}

absl::StatusOr<KernelInputs> MakeKernelInputs(
    const KernelProblem& problem, const DeviceProblemOptions& options,
    DeviceMemory& memory) {
  BM_RETURN_IF_ERROR(problem.Validate());
  if (std::ssize(problem.lengths) > kMaxDeviceLists) {
    return Invalid("lists: expected at most ", kMaxDeviceLists,
                   " (sequences times heads), got ", problem.lengths.size());
  }
  KernelInputs in;
  in.problem = problem;
  in.model_dim = options.model_dim;
  in.tensor_order = options.tensor_order;
  in.shape = {problem.element_type, problem.head_dim};
  in.num_blocks = CeilDiv(problem.num_pages, problem.num_heads);
  FillPools(options.rotated_bytes, in, memory);
  BM_RETURN_IF_ERROR(memory.status());
  SendLists(in, memory);
  SendEntries(in, memory);
  BM_RETURN_IF_ERROR(memory.status());
  BM_RETURN_IF_ERROR(memory.device().status());
  return in;
}

ListSplits SendSplits(std::span<const int64_t> offsets, int32_t split_entries,
                      int32_t min_splits, DeviceMemory& memory) {
  std::vector<int32_t> splits(offsets.size());
  const int32_t count =
      FillSplitOffsets(offsets.data(), std::ssize(offsets) - 1, split_entries,
                       splits.data(), min_splits);
  return {memory.Send<int32_t>(splits), count};
}

}  // namespace blockmgr
