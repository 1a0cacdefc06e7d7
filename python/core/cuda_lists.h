// Lists in device memory that launches read: page lists of attention, and
// entries.
#ifndef PYTHON_CORE_CUDA_LISTS_H_
#define PYTHON_CORE_CUDA_LISTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/list_splits.h"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/selection/select.h"
#include "python/core/arrays.h"

namespace blockmgr::python {

// Returns the elements of a tensor that launches read or write.
template <typename T>
T* DataOf(const AnyArray& array) {
  return static_cast<T*>(const_cast<void*>(array.data()));
}

// The page lists of some sequences. Keeps the tensors alive. Constant.
struct PyAttentionLists {
  ModelLayout layout;
  int32_t device = 0;
  int32_t num_sequences = 0;
  AnyArray block_tables;  // [num_sequences, width]
  AnyArray tail_lengths;  // [num_sequences]
  bool has_regions = false;
  AnyArray region_lengths;  // [num_layers, num_sequences, num_heads]
  AnyArray region_offsets;  // [num_layers, num_sequences, num_heads]
  AnyArray region_pages;    // [pages]

  AttentionLists OfLayer(int32_t layer) const;
};

// The queries of some sequences. Constant.
struct PyPrefillPlan {
  ModelLayout layout;
  int32_t num_sequences = 0;
  int32_t num_tokens = 0;
  int32_t num_blocks = 0;  // thread blocks for each head
  // Query offsets, then offsets of thread blocks, [2 * (num_sequences + 1)]:
  // the caller sends them to the device.
  std::vector<int32_t> words;
};

// The sizes of the entry lists of some groups, as the host knows them, and the
// words that tell launches of these sizes. A group is one sequence in one
// layer. Constant.
struct PyEntryPlan {
  ModelLayout layout;
  int32_t num_groups = 0;
  std::vector<int64_t> offsets;  // [num_groups * num_heads + 1]
  std::vector<int32_t> lengths;  // [num_groups], tokens

  // The words that the caller sends to the device, and where in them each array
  // begins: `offsets` (two words each) at 0, then the following.
  std::vector<int32_t> words;
  int64_t row_splits_at = 0;
  int64_t window_splits_at = 0;
  int64_t chunks_at = 0;  // of a selection
  int64_t lengths_at = 0;
  int64_t tiles_at = 0;  // of tova

  int32_t num_lists() const { return num_groups * layout.num_heads; }
  int64_t num_entries() const { return offsets.back(); }
  // The last offset of the array of splits that begins at words[at].
  int32_t CountSplits(int64_t at, int64_t num_lists) const {
    return words[static_cast<size_t>(at + num_lists)];
  }
};

// Adds the splits of the lists that begin at `offsets`, and returns where.
inline int64_t AddSplitWords(std::span<const int64_t> offsets,
                             int32_t split_entries, int32_t min_splits,
                             std::vector<int32_t>* words) {
  const size_t begin = words->size();
  words->resize(begin + offsets.size());
  FillSplitOffsets(offsets.data(), std::ssize(offsets) - 1, split_entries,
                   words->data() + begin, min_splits);
  return static_cast<int64_t>(begin);
}

// A plan whose words are on a device, and entries. Keeps the tensors alive.
struct PyEntryLists {
  std::shared_ptr<PyEntryPlan> plan;
  int32_t device = 0;
  AnyArray words;
  AnyArray slots;      // [num_entries]
  AnyArray positions;  // [num_entries]

  const int32_t* WordsAt(int64_t at) const {
    return DataOf<const int32_t>(words) + at;
  }
  EntryLists Lists() const;
  // Chunks of a selection.
  ListSplits Chunks() const {
    return {WordsAt(plan->chunks_at),
            plan->CountSplits(plan->chunks_at, plan->num_lists())};
  }
};

// The sizes of an index that turns the tables of attention into entries.
// Constant.
struct PyIndexPlan {
  std::shared_ptr<PyEntryPlan> entries;
  int32_t num_sequences = 0;
  int32_t longest_list = 0;  // entries
  int64_t num_marks = 0;     // 32 positions each, of all lists
  // The words that the caller sends to the device: entry offsets (two words
  // each) at 0, then offsets of marks (two words each), then cuts, then chunks.
  std::vector<int32_t> words;
  int64_t mark_offsets_at = 0;
  int64_t cuts_at = 0;
  int64_t chunks_at = 0;

  int64_t workspace_bytes() const;
};

// The queries that expected_attention expects, as its kernels read them.
// Constant.
struct PyFutureQueries {
  ModelLayout layout;
  size_t num_groups = 0;
  std::vector<float> means;  // [num_groups, num_q_heads, head_dim]
  // The bits of the pool's elements, [num_groups, num_q_heads, head_dim, 2,
  // head_dim]. Empty with cov=false.
  std::vector<uint16_t> covariances;
  std::vector<float> units;  // [num_groups, num_q_heads]
};

// A selection from all entries of one sequence.
struct PySelectionPlan {
  std::shared_ptr<PyEntryPlan> entries;
  SelectProblem problem;       // without pointers
  std::vector<int32_t> words;  // SelectScope [num_scopes], to be sent
  bool needs_scores = false;
  bool needs_products = false;

  int64_t workspace_bytes() const;
  int64_t num_survivor_words() const;
};

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_CUDA_LISTS_H_
