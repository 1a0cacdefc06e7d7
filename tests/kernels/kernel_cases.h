// Random caches for the kernel tests: a plain array of every slot's K and V
// next to a backend that holds the same, and sequences laid over it.
#ifndef TESTS_KERNELS_KERNEL_CASES_H_
#define TESTS_KERNELS_KERNEL_CASES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "tests/testing/random.h"

namespace blockmgr {

// Sum of uniform numbers: roughly normal with variance 1.
float RandomFloat(Rng& rng);
std::vector<float> RandomFloats(Rng& rng, int64_t count);

// 1..8 heads, 1..8 q_heads each, 1..3 layers, rows of 8..128 elements, pages of
// 1, 2, 4 or 16 tokens.
ModelLayout RandomLayout(Rng& rng, DType dtype, int32_t num_blocks);

inline constexpr DType kEveryDType[] = {DType::kFloat32, DType::kBFloat16,
                                        DType::kFloat16};
// Name of a test parameter.
std::string DTypeParamName(const testing::TestParamInfo<DType>& info);

// All slots of a pool, in random order.
std::vector<SlotIndex> ShuffledSlots(const ModelLayout& layout, Rng& rng);

// What `value` becomes when stored as `dtype`.
float Stored(float value, DType dtype);

// Every slot of a pool as float32 values; NaN where nothing was written.
class PoolModel {
 public:
  explicit PoolModel(const ModelLayout& layout);

  const ModelLayout& layout() const { return layout_; }
  std::span<float> key(SlotIndex slot) { return row(2 * slot); }
  std::span<float> value(SlotIndex slot) { return row(2 * slot + 1); }
  std::span<const float> key(SlotIndex slot) const { return row(2 * slot); }
  std::span<const float> value(SlotIndex slot) const {
    return row(2 * slot + 1);
  }
  void FillRandom(SlotIndex slot, Rng& rng);
  void FillAll(Rng& rng);
  // Takes K and V of a slot of `from`, a model of rows as long.
  void CopyRow(const PoolModel& from, SlotIndex source, SlotIndex destination);
  // A poisoned backend, then every slot of the model appended to it; dead slots
  // of a written block become NaN, slots of other blocks stay poisoned.
  std::unique_ptr<Backend> MakeBackend() const;
  // The same, to a backend of the model's layout.
  void CopyTo(Backend* backend) const;
  // Whether every slot of the backend holds the bits of the model.
  bool Matches(const Backend& backend) const;

 private:
  std::span<float> row(int64_t index) {
    return std::span(rows_).subspan(index * layout_.head_dim, layout_.head_dim);
  }
  std::span<const float> row(int64_t index) const {
    return std::span(rows_).subspan(index * layout_.head_dim, layout_.head_dim);
  }

  ModelLayout layout_;
  std::vector<float> rows_;  // [slots, 2, head_dim]
};

// Copies random blocks of a backend that holds the model to host memory and
// from there to others. What is wrong with the bytes on the host, or empty; the
// model has what the backend's blocks must hold.
std::string CheckHostCopies(Backend* backend, PoolModel* model, Rng& rng);

// One sequence's cache in one layer, owning what SequenceKv borrows.
struct TestSequence {
  int32_t layer = 0;
  std::vector<PageId> region_pages;
  std::vector<int32_t> region_offsets;
  std::vector<int32_t> region_lengths;
  // As SequenceKv has them; empty: none.
  std::vector<int32_t> region_positions;
  int32_t cut = 0;
  std::vector<BlockId> tail_blocks;
  int32_t tail_length = 0;

  // With the first `length` tokens of the tail.
  SequenceKv View(int32_t length) const;
  SequenceKv View() const { return View(tail_length); }
  // Slots of head's list: the region, then the tail.
  std::vector<SlotIndex> Slots(const ModelLayout& layout, int32_t head) const;
  // Gives the region of each head some of the positions [0, cut), in no order.
  // REQUIRES: no length exceeds the cut.
  void TakePositions(const ModelLayout& layout, int32_t cut, Rng& rng);
  // Position of each of Slots(). Without positions, their ranks.
  std::vector<int32_t> Positions(const ModelLayout& layout, int32_t head) const;
};

// Hands out pages and blocks of a pool in random order, each once.
class PagePicker {
 public:
  // `num_tail_blocks` of the pool are kept whole, the pages of the others are
  // shuffled over all layers and heads.
  PagePicker(const ModelLayout& layout, int32_t num_tail_blocks, Rng& rng);

  // A sequence with ragged region lengths in [0, max_region], some zero, and
  // its live slots filled in the model.
  TestSequence MakeSequence(int32_t layer, int32_t max_region,
                            int32_t tail_length, PoolModel* model, Rng& rng);

 private:
  const ModelLayout layout_;
  std::vector<BlockId> blocks_;
  std::vector<PageId> pages_;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_KERNEL_CASES_H_
