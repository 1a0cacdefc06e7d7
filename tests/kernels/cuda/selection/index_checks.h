// Lists of entries made on a device, against the definition: the entries of a
// list, sorted by position.
#ifndef TESTS_KERNELS_CUDA_SELECTION_INDEX_CHECKS_H_
#define TESTS_KERNELS_CUDA_SELECTION_INDEX_CHECKS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/selection/entry_index.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/random.h"

namespace blockmgr {

// Sequences in random rows of their tables, with regions in no order, in one
// layer or several, and what each list's entries are.
class IndexCase {
 public:
  IndexCase(Rng& rng, bool has_regions);

  // Params over this case's arrays; results and work space are poisoned but for
  // the marks, which are zero.
  EntryIndexParams Params();
  // Runs the device's index; what differs, or "".
  std::string Run(const simt::Schedule& schedule);

  int64_t num_lists() const { return std::ssize(offsets) - 1; }
  int64_t num_entries() const { return offsets.back(); }

  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  int32_t first_layer = 0;
  int32_t num_layers = 0;
  int32_t num_blocks = 0;
  int32_t page_shift = 0;
  int32_t longest_tail = 0;  // tokens
  int64_t tail_stride = 0;
  SharedVector<int32_t> sequence_slots;
  SharedVector<int32_t> region_lengths;    // [layers, slots, heads]
  SharedVector<int64_t> region_offsets;    // the same
  SharedVector<int32_t> region_pages;      // of no list first
  SharedVector<int32_t> region_positions;  // a page's for each
  SharedVector<int32_t> cuts;              // [slots]
  SharedVector<int32_t> tail_blocks;       // [slots, tail_stride]
  SharedVector<int32_t> tail_lengths;      // [slots]
  SharedVector<int64_t> offsets;
  // Position and slot, list after list.
  std::vector<std::pair<int32_t, int64_t>> expected;
  bool in_chunks = false;  // regions, in CTAs for chunks of lists

  // Of the last run.
  SharedVector<int64_t> slots;
  SharedVector<int32_t> positions;
  SharedVector<uint32_t> error;

 private:
  void DrawTables(Rng& rng, bool has_regions);
  // At most so many entries.
  void DrawRegion(Rng& rng, int64_t row, int32_t most);
  // The list's region, sorted, then the first `num_tail` of its tail's tokens.
  void Expect(int32_t layer, int32_t sequence, int32_t head, int32_t num_tail);

  SharedVector<int64_t> word_offsets_;
  SharedVector<int32_t> chunks_;
  SharedVector<uint32_t> marks_;
  SharedVector<IndexWord> words_;
};

// One random case; what is wrong, or "".
std::string CheckIndex(uint64_t seed);

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SELECTION_INDEX_CHECKS_H_
