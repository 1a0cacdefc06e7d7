// CudaKernels: the index of entries.
#include <algorithm>
#include <cstring>
#include <utility>

#include "blockmgr/base/bits.h"
#include "kernels/cuda/selection/entry_index.h"
#include "python/core/cuda_kernels.h"
#include "python/core/errors.h"

namespace blockmgr::python {
namespace {

// The most lists of a layer that LaunchIndexEntries takes, and the limit of
// CUDA on a grid in y and z.
constexpr int64_t kMaxGrid = 65'535;

// The workspace of an index.
struct IndexArrays {
  uint32_t* marks;
  IndexWord* words;
};

IndexArrays TakeIndexArrays(int64_t num_marks, WorkspaceCursor* cursor) {
  return {.marks = cursor->Take<uint32_t>(num_marks),
          .words = cursor->Take<IndexWord>(num_marks)};
}

// Appends integers of 64 bits to words, and returns where they begin.
int64_t AppendLongs(const std::vector<int64_t>& values,
                    std::vector<int32_t>* words) {
  const size_t begin = words->size();
  words->resize(begin + 2 * values.size());
  std::memcpy(words->data() + begin, values.data(),
              values.size() * sizeof(int64_t));
  return static_cast<int64_t>(begin);
}

// Returns the entries of the longest list.
int32_t LongestList(const PyEntryPlan& plan) {
  const int64_t longest =
      blockmgr::LongestList(plan.offsets.data(), plan.num_lists());
  if (longest > kMaxGrid * kIndexTailEntries) {
    ThrowInvalid("plan: expected at most ", kMaxGrid * kIndexTailEntries,
                 " entries of a head, got ", longest);
  }
  return static_cast<int32_t>(longest);
}

void CheckCuts(const PyEntryPlan& plan, const std::vector<int32_t>& cuts) {
  for (size_t group = 0; group < plan.lengths.size(); ++group) {
    const size_t sequence = group % cuts.size();
    if (cuts[sequence] > plan.lengths[group]) {
      ThrowInvalid("cuts[", sequence, "]: expected at most ",
                   plan.lengths[group], ", the length of the sequence, got ",
                   cuts[sequence]);
    }
  }
}

}  // namespace

int64_t PyIndexPlan::workspace_bytes() const {
  WorkspaceCursor cursor;
  TakeIndexArrays(num_marks, &cursor);
  return cursor.bytes();
}

PyIndexPlan PyCudaKernels::PlanIndex(std::shared_ptr<PyEntryPlan> entries,
                                     IntsArgument cuts) const {
  CheckPlan(*entries);
  const auto tail_begins = CopyInts<int32_t>("cuts", cuts, 0);
  const int64_t num_sequences = std::ssize(tail_begins);
  if (num_sequences * layout_.num_layers != entries->num_groups) {
    ThrowInvalid("cuts: expected one for each sequence, whose ",
                 layout_.num_layers, " layers are groups of the plan, got ",
                 num_sequences, " cuts and ", entries->num_groups, " groups");
  }
  if (num_sequences * layout_.num_heads > kMaxGrid) {
    ThrowInvalid("cuts: expected at most ", kMaxGrid / layout_.num_heads,
                 " sequences, got ", num_sequences);
  }
  CheckCuts(*entries, tail_begins);
  PyIndexPlan plan;
  plan.num_sequences = static_cast<int32_t>(num_sequences);
  plan.longest_list = LongestList(*entries);
  std::vector<int64_t> mark_offsets = {0};
  for (const int32_t cut : tail_begins) {
    mark_offsets.push_back(mark_offsets.back() + CeilDiv(cut, 32));
  }
  plan.num_marks = mark_offsets.back() * layout_.num_heads * layout_.num_layers;
  AppendLongs(entries->offsets, &plan.words);
  plan.mark_offsets_at = AppendLongs(mark_offsets, &plan.words);
  plan.cuts_at = std::ssize(plan.words);
  plan.words.insert(plan.words.end(), tail_begins.begin(), tail_begins.end());
  plan.chunks_at =
      AddSplitWords(entries->offsets, kIndexChunkEntries, 0, &plan.words);
  plan.entries = std::move(entries);
  return plan;
}

void PyCudaKernels::IndexEntries(const PyIndexPlan& plan, TensorArgument words,
                                 const PyAttentionLists& lists,
                                 TensorArgument slots, TensorArgument positions,
                                 TensorArgument workspace,
                                 TensorArgument region_positions,
                                 const StreamArgument& stream) {
  CheckPlan(*plan.entries);
  CheckLists(lists);
  if (lists.num_sequences != plan.num_sequences) {
    ThrowInvalid("lists: expected those of ", plan.num_sequences,
                 " sequences, got ", lists.num_sequences);
  }
  const int64_t num_entries = plan.entries->num_entries();
  // It begins with integers of 64 bits.
  const AnyArray numbers = Import("words", words, {nb::dtype<int32_t>()},
                                  {std::ssize(plan.words)}, {.alignment = 8});
  const AnyArray slot_ids =
      ImportOf<int64_t>("slots", slots, {num_entries}, true);
  const AnyArray tokens =
      ImportOf<int32_t>("positions", positions, {num_entries}, true);
  AnyArray memory;
  AnyArray region_tokens;
  if (lists.has_regions) {
    memory = ImportWorkspace(workspace, plan.workspace_bytes(),
                             "IndexPlan.workspace_bytes");
    region_tokens = ImportOf<int32_t>(
        "region_positions", region_positions,
        {static_cast<int64_t>(lists.region_pages.shape(0)), layout_.page_size});
  }
  const auto* const first_word = DataOf<const int32_t>(numbers);
  EntryIndexParams params;
  params.lists = lists.OfLayer(0);
  params.lists.region_positions = DataOf<const int32_t>(region_tokens);
  params.lists.cuts = first_word + plan.cuts_at;
  params.num_layers = layout_.num_layers;
  params.region_stride = int64_t{lists.num_sequences} * layout_.num_heads;
  params.num_blocks = layout_.num_blocks;
  params.page_shift = pool_.page_shift;
  params.offsets = DataOf<const int64_t>(numbers);
  params.word_offsets =
      reinterpret_cast<const int64_t*>(first_word + plan.mark_offsets_at);
  if (plan.longest_list > kIndexWholeEntries) {
    params.chunks = {first_word + plan.chunks_at,
                     plan.words[plan.chunks_at + plan.entries->num_lists()]};
  }
  params.slots = DataOf<int64_t>(slot_ids);
  params.positions = DataOf<int32_t>(tokens);
  params.error = reinterpret_cast<uint32_t*>(memory_);
  Launch(stream, [&](DeviceRuntime& runtime) {
    if (lists.has_regions && plan.num_marks > 0) {
      WorkspaceCursor cursor(DataOf<char>(memory));
      const IndexArrays arrays = TakeIndexArrays(plan.num_marks, &cursor);
      params.marks = arrays.marks;
      params.words = arrays.words;
      runtime.Fill(reinterpret_cast<char*>(arrays.marks), 0,
                   plan.num_marks * int64_t{sizeof(uint32_t)});
    }
    // A tail has no more entries than its list.
    runtime.IndexEntries(params, plan.longest_list);
  });
}

}  // namespace blockmgr::python
