// Random ragged caches for the attention kernels: lists over shuffled pages,
// NaN in every slot that is not live, and attention in float64 from the
// definition.
#ifndef TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CASES_H_
#define TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CASES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_error.h"
#include "tests/kernels/cuda/case_pool.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {

struct AttentionShape {
  int32_t num_heads = 2;
  int32_t group_size = 4;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  KvTensorOrder order = KvTensorOrder::kPages;
  bool far = false;  // as CasePool says
  // Kept lengths per list; empty: no regions at all.
  std::vector<int32_t> region_lengths;  // [sequences, num_heads]
  std::vector<int32_t> tail_lengths;    // [sequences]
  int32_t window = 0;
  bool with_sinks = false;
  // With regions: position of every tail's first token. The rows of regions
  // have any positions before it, in no order.
  int32_t cut = 0;
};

// Of two layers; blocks for all tails and regions, and a few more.
inline ModelLayout LayoutOf(const AttentionShape& shape) {
  constexpr int32_t kLayers = 2;
  int32_t num_tail_blocks = 0;
  int32_t num_region_pages = 0;
  for (const int32_t length : shape.tail_lengths) {
    num_tail_blocks += CeilDiv(length, shape.page_size);
  }
  for (const int32_t length : shape.region_lengths) {
    num_region_pages += CeilDiv(length, shape.page_size);
  }
  return {.num_layers = kLayers,
          .num_heads = shape.num_heads,
          .num_q_heads = shape.num_heads * shape.group_size,
          .head_dim = shape.head_dim,
          .page_size = shape.page_size,
          .dtype = DType::kBFloat16,
          .num_blocks = num_tail_blocks +
                        num_region_pages / (kLayers * shape.num_heads) + 3};
}

// Of a case's pool.
inline int64_t PoolBytes(const AttentionShape& shape) {
  return CasePool::CountBytes(LayoutOf(shape), shape.order, shape.far);
}

// T: simt::BFloat16 or simt::Half.
template <typename T>
class AttentionCase {
 public:
  AttentionCase(const AttentionShape& shape, uint64_t seed);

  const ModelLayout& layout() const { return layout_; }
  const AttentionShape& shape() const { return shape_; }
  int32_t num_sequences() const {
    return static_cast<int32_t>(shape_.tail_lengths.size());
  }
  int32_t num_lists() const { return num_sequences() * shape_.num_heads; }
  int32_t num_q_heads() const { return layout_.num_q_heads; }
  float scale() const {
    return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  }
  static constexpr int32_t kLayer = 1;
  RowShape row_shape() const {
    return {.type = ElementTypeOf<T>(), .head_dim = shape_.head_dim};
  }

  AttentionLists Lists() const;
  PagedPool Pool() const { return pool_.View(); }
  // Slots of a list, in order.
  const std::vector<SlotIndex>& slots(int32_t list) const {
    return slots_[list];
  }
  int32_t region_length(int32_t list) const {
    return shape_.region_lengths.empty() ? 0 : shape_.region_lengths[list];
  }
  // Of their tokens, where there is a window.
  const std::vector<int32_t>& positions(int32_t list) const {
    return positions_[list];
  }
  float Value(SlotIndex slot, bool is_value, int32_t element) const;
  void SetValue(SlotIndex slot, bool is_value, int32_t element, float value);
  SharedVector<T> RandomQueries(int64_t num_tokens);
  // Rows of a sequence before `row` become NaN, and pages that only they are on
  // get ids that no pool has.
  void DropBefore(int32_t sequence, int32_t row);
  // The rows of a list, as they are now.
  ListRows Rows(int32_t list) const;
  // Returns the attention of one query over the first `num_rows` of `rows`, the
  // rows of `list`. The query is that of the last of these rows, and of query
  // head `q_head` of the group.
  HeadAttention Reference(const ListRows& rows, int32_t list, int32_t q_head,
                          int64_t num_rows, const T* query) const;
  // The sinks of all query heads, or an empty vector. The sink of the last head
  // is -infinity, which means none.
  SharedVector<float>& sinks() { return sinks_; }
  const float* SinkPointer() const {
    return sinks_.empty() ? nullptr : sinks_.data();
  }
  Rng& rng() { return rng_; }

 private:
  void MakeLists();
  void MakePositions();

  Rng rng_;
  AttentionShape shape_;
  ModelLayout layout_;
  CasePool pool_;
  SharedVector<int32_t> sequence_slots_;
  SharedVector<int32_t> region_lengths_;
  SharedVector<int64_t> region_offsets_;
  SharedVector<int32_t> region_pages_;
  SharedVector<int32_t> region_positions_;
  SharedVector<int32_t> cuts_;
  SharedVector<int32_t> tail_blocks_;
  int64_t tail_stride_ = 0;
  SharedVector<int32_t> tail_lengths_;
  SharedVector<float> sinks_;
  std::vector<std::vector<SlotIndex>> slots_;
  std::vector<std::vector<int32_t>> positions_;
};

template <typename T>
AttentionCase<T>::AttentionCase(const AttentionShape& shape, uint64_t seed)
    : rng_(seed),
      shape_(shape),
      layout_(LayoutOf(shape)),
      pool_(layout_, shape.order, shape.far) {
  MakeLists();
  if (shape.window > 0) MakePositions();
  if (!shape.with_sinks) return;
  Rng rng(23);  // of its own: sinks change nothing else of a case
  for (int32_t i = 0; i < num_q_heads(); ++i) {
    // Below most logits, among them, and above.
    sinks_.push_back(3.0f + 3.0f * RandomFloat(rng));
  }
  sinks_.back() = -std::numeric_limits<float>::infinity();
}

template <typename T>
void AttentionCase<T>::MakePositions() {
  const bool regions = !shape_.region_lengths.empty();
  // Slots that are not live have positions that nobody may look at.
  if (regions) {
    region_positions_.assign(region_pages_.size() * shape_.page_size, 1 << 30);
    cuts_.assign(num_sequences() + 1, -1);
  }
  std::vector<int32_t> before(shape_.cut);
  std::iota(before.begin(), before.end(), 0);
  Rng rng(7);  // of its own: a window changes nothing else of a case
  positions_.resize(num_lists());
  for (int32_t list = 0; list < num_lists(); ++list) {
    const int64_t slot = sequence_slots_[list / shape_.num_heads];
    std::vector<int32_t>& out = positions_[list];
    if (regions) {
      cuts_[slot] = shape_.cut;
      Shuffle(&before, rng);
      out.assign(before.begin(), before.begin() + region_length(list));
      const int64_t index = slot * shape_.num_heads + list % shape_.num_heads;
      std::ranges::copy(out, region_positions_.begin() +
                                 region_offsets_[index] * shape_.page_size);
    }
    while (out.size() < slots_[list].size()) {
      const auto in_tail =
          static_cast<int32_t>(out.size()) - region_length(list);
      out.push_back((regions ? shape_.cut : 0) + in_tail);
    }
  }
}

template <typename T>
void AttentionCase<T>::MakeLists() {
  const int32_t page_size = shape_.page_size;
  std::vector<int32_t> blocks;
  for (int32_t i = 1; i < layout_.num_blocks; ++i) blocks.push_back(i);
  Shuffle(&blocks, rng_);
  // Tables in an order of their own, as slots that sequences come and go in.
  const int32_t num_slots = num_sequences() + 1;
  std::vector<int32_t> slots(num_slots);
  std::iota(slots.begin(), slots.end(), 0);
  Shuffle(&slots, rng_);
  sequence_slots_.assign(slots.begin(), slots.begin() + num_sequences());
  for (const int32_t length : shape_.tail_lengths) {
    tail_stride_ = std::max<int64_t>(tail_stride_, length / page_size + 2);
  }
  tail_blocks_.assign(num_slots * tail_stride_, -1);
  tail_lengths_.assign(num_slots, -1);
  for (int32_t s = 0; s < num_sequences(); ++s) {
    const int64_t slot = sequence_slots_[s];
    tail_lengths_[slot] = shape_.tail_lengths[s];
    for (int32_t i = 0; i * page_size < shape_.tail_lengths[s]; ++i) {
      tail_blocks_[slot * tail_stride_ + i] = blocks.back();
      blocks.pop_back();
    }
  }
  // Pages of what is left, of any layer and head.
  std::vector<int32_t> pages;
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    for (const int32_t block : blocks) {
      for (int32_t head = 0; head < shape_.num_heads; ++head) {
        pages.push_back(Index(layout_.page_id(layer, BlockId{block}, head)));
      }
    }
  }
  Shuffle(&pages, rng_);
  const bool regions = !shape_.region_lengths.empty();
  region_lengths_.assign(regions ? num_slots * shape_.num_heads : 0, -1);
  region_offsets_.assign(region_lengths_.size(), -1);
  slots_.resize(num_lists());
  for (int32_t list = 0; list < num_lists(); ++list) {
    const int32_t head = list % shape_.num_heads;
    const int64_t slot = sequence_slots_[list / shape_.num_heads];
    std::vector<SlotIndex>& out = slots_[list];
    if (regions) {
      const int64_t index = slot * shape_.num_heads + head;
      region_lengths_[index] = shape_.region_lengths[list];
      region_offsets_[index] = std::ssize(region_pages_);
      for (int32_t r = 0; r < shape_.region_lengths[list]; ++r) {
        if (r % page_size == 0) {
          region_pages_.push_back(pages.back());
          pages.pop_back();
        }
        out.push_back(
            layout_.slot(PageId{region_pages_.back()}, r % page_size));
      }
    }
    for (int32_t r = 0; r < shape_.tail_lengths[list / shape_.num_heads]; ++r) {
      const BlockId block{tail_blocks_[slot * tail_stride_ + r / page_size]};
      out.push_back(
          layout_.slot(layout_.page_id(kLayer, block, head), r % page_size));
    }
    for (const SlotIndex live : out) {
      for (int32_t i = 0; i < 2 * shape_.head_dim; ++i) {
        SetValue(live, i >= shape_.head_dim, i % shape_.head_dim,
                 RandomFloat(rng_));
      }
    }
  }
}

template <typename T>
AttentionLists AttentionCase<T>::Lists() const {
  const bool regions = !shape_.region_lengths.empty();
  return {.num_sequences = num_sequences(),
          .num_heads = shape_.num_heads,
          .layer = kLayer,
          .window = shape_.window,
          .sequence_slots = sequence_slots_.data(),
          .region_lengths = regions ? region_lengths_.data() : nullptr,
          .region_offsets = regions ? region_offsets_.data() : nullptr,
          .region_pages = regions ? region_pages_.data() : nullptr,
          .region_positions =
              region_positions_.empty() ? nullptr : region_positions_.data(),
          .cuts = cuts_.empty() ? nullptr : cuts_.data(),
          .tail_blocks = tail_blocks_.data(),
          .tail_stride = tail_stride_,
          .tail_lengths = tail_lengths_.data()};
}

template <typename T>
float AttentionCase<T>::Value(SlotIndex slot, bool is_value,
                              int32_t element) const {
  return simt::ToFloat(T{pool_.Row(slot, is_value)[element]});
}

template <typename T>
void AttentionCase<T>::SetValue(SlotIndex slot, bool is_value, int32_t element,
                                float value) {
  pool_.Row(slot, is_value)[element] = simt::FromFloat<T>(value).bits;
}

template <typename T>
SharedVector<T> AttentionCase<T>::RandomQueries(int64_t num_tokens) {
  SharedVector<T> queries;
  const int64_t count = num_tokens * num_q_heads() * shape_.head_dim;
  for (int64_t i = 0; i < count; ++i) {
    queries.push_back(simt::FromFloat<T>(2.0f * RandomFloat(rng_)));
  }
  return queries;
}

template <typename T>
void AttentionCase<T>::DropBefore(int32_t sequence, int32_t row) {
  for (int32_t head = 0; head < shape_.num_heads; ++head) {
    for (int32_t r = 0; r < row; ++r) {
      const SlotIndex slot = slots_[sequence * shape_.num_heads + head][r];
      for (int32_t i = 0; i < 2 * shape_.head_dim; ++i) {
        SetValue(slot, i >= shape_.head_dim, i % shape_.head_dim,
                 std::nanf(""));
      }
    }
  }
  const auto first =
      tail_blocks_.begin() + sequence_slots_[sequence] * tail_stride_;
  std::fill(first, first + row / shape_.page_size, 1 << 30);
}

template <typename T>
ListRows AttentionCase<T>::Rows(int32_t list) const {
  const std::size_t num_elements = slots_[list].size() * shape_.head_dim;
  ListRows rows;
  rows.keys.reserve(num_elements);
  rows.values.reserve(num_elements);
  for (const SlotIndex slot : slots_[list]) {
    const uint16_t* key = pool_.Row(slot, false);
    const uint16_t* value = pool_.Row(slot, true);
    for (int32_t i = 0; i < shape_.head_dim; ++i) {
      rows.keys.push_back(double{simt::ToFloat(T{key[i]})});
      rows.values.push_back(double{simt::ToFloat(T{value[i]})});
    }
  }
  return rows;
}

template <typename T>
HeadAttention AttentionCase<T>::Reference(const ListRows& rows, int32_t list,
                                          int32_t q_head, int64_t num_rows,
                                          const T* query) const {
  std::vector<double> wide_query;
  wide_query.reserve(shape_.head_dim);
  for (int32_t i = 0; i < shape_.head_dim; ++i) {
    wide_query.push_back(double{simt::ToFloat(query[i])});
  }
  std::vector<int64_t> seen;
  for (int64_t r = 0; r < num_rows; ++r) {
    if (shape_.window > 0 &&
        positions_[list][num_rows - 1] - positions_[list][r] >= shape_.window) {
      continue;
    }
    seen.push_back(r);
  }
  const int32_t head = list % shape_.num_heads;
  const double sink = sinks_.empty()
                          ? -std::numeric_limits<double>::infinity()
                          : double{sinks_[head * shape_.group_size + q_head]};
  return AttendByDefinition(wide_query, rows, seen, scale(), sink);
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CASES_H_
