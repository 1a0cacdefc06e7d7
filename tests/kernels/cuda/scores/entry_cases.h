// Random entries of some sequences in one layer for the score kernels, and
// attention weights in float64 from the definition.
#ifndef TESTS_KERNELS_CUDA_SCORES_ENTRY_CASES_H_
#define TESTS_KERNELS_CUDA_SCORES_ENTRY_CASES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_cases.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {

struct EntryShape {
  int32_t num_heads = 2;
  int32_t group_size = 4;
  int32_t head_dim = 64;
  int32_t page_size = 16;
  KvTensorOrder order = KvTensorOrder::kPages;
  bool far = false;            // as CasePool says
  std::vector<int32_t> sizes;  // [sequences, num_heads], entries per list
  int32_t window = 1;          // queries
  // Lists of at least `window` entries hold the window's positions.
  bool whole_window = true;
};

// Regions of which the entries are.
inline AttentionShape CacheShape(const EntryShape& shape) {
  const std::size_t num_sequences = shape.sizes.size() / shape.num_heads;
  return {.num_heads = shape.num_heads,
          .group_size = shape.group_size,
          .head_dim = shape.head_dim,
          .page_size = shape.page_size,
          .order = shape.order,
          .far = shape.far,
          .region_lengths = shape.sizes,
          .tail_lengths = std::vector<int32_t>(num_sequences, 0)};
}

// Of a case's pool.
inline int64_t PoolBytes(const EntryShape& shape) {
  return PoolBytes(CacheShape(shape));
}

// T: simt::BFloat16 or simt::Half. Slots are in no order, positions are sorted
// and have gaps.
template <typename T>
class EntryCase {
 public:
  EntryCase(const EntryShape& shape, uint64_t seed);

  const EntryShape& shape() const { return shape_; }
  AttentionCase<T>& cache() { return cache_; }
  int32_t num_sequences() const {
    return static_cast<int32_t>(lengths_.size());
  }
  int32_t num_lists() const { return cache_.num_lists(); }
  int64_t num_entries() const { return offsets_.back(); }
  int64_t offset(int32_t list) const { return offsets_[list]; }
  int32_t size(int32_t list) const { return shape_.sizes[list]; }
  int32_t position(int64_t entry) const { return positions_[entry]; }
  SlotIndex slot(int64_t entry) const { return slots_[entry]; }
  const SharedVector<int32_t>& lengths() const { return lengths_; }
  const SharedVector<T>& queries() const { return queries_; }
  // Entries of a list before the window.
  int32_t CountPast(int32_t list) const;
  EntryLists Lists() const {
    return {.num_sequences = num_sequences(),
            .num_heads = shape_.num_heads,
            .offsets = offsets_.data(),
            .slots = slots_.data(),
            .positions = positions_.data(),
            .row_splits = {row_splits_.data(), row_splits_.back()},
            .window_splits = {window_splits_.data(), window_splits_.back()}};
  }
  // Row of (sequence, query, q_head of the group) in arrays [sequences, window,
  // num_q_heads].
  int64_t QueryRow(int32_t list, int32_t query, int32_t q_head) const;
  // Softmax of one query over the entries it sees; 0 for the others. Its
  // log-sum-exp goes to *lse unless null.
  std::vector<double> Weights(int32_t list, int32_t query, int32_t q_head,
                              double* lse) const;

 private:
  EntryShape shape_;
  AttentionCase<T> cache_;
  SharedVector<int64_t> offsets_ = {0};
  SharedVector<SlotIndex> slots_;
  SharedVector<int32_t> positions_;
  SharedVector<int32_t> row_splits_;
  SharedVector<int32_t> window_splits_;
  SharedVector<int32_t> lengths_;
  SharedVector<T> queries_;
};

template <typename T>
EntryCase<T>::EntryCase(const EntryShape& shape, uint64_t seed)
    : shape_(shape), cache_(CacheShape(shape), seed) {
  Rng& rng = cache_.rng();
  const int32_t heads = shape.num_heads;
  for (int32_t s = 0; s < cache_.num_sequences(); ++s) {
    const auto begin = shape.sizes.begin() + std::ptrdiff_t{s} * heads;
    const int32_t longest = *std::max_element(begin, begin + heads);
    lengths_.push_back(longest + shape.window + RandomInt(rng, 0, 20));
  }
  for (int32_t list = 0; list < num_lists(); ++list) {
    const int32_t length = lengths_[list / heads];
    const bool whole = shape.whole_window && size(list) >= shape.window;
    const int32_t kept = whole ? shape.window : 0;
    std::vector<int32_t> others(length - kept);
    std::iota(others.begin(), others.end(), 0);
    Shuffle(&others, rng);
    others.resize(size(list) - kept);
    for (int32_t p = length - kept; p < length; ++p) others.push_back(p);
    std::ranges::sort(others);
    positions_.insert(positions_.end(), others.begin(), others.end());
    std::vector<SlotIndex> slots = cache_.slots(list);
    Shuffle(&slots, rng);
    slots_.insert(slots_.end(), slots.begin(), slots.end());
    offsets_.push_back(std::ssize(slots_));
  }
  row_splits_ = SharedSplits(offsets_, kRowSplitEntries);
  window_splits_ = SharedSplits(offsets_, kSplitEntries);
  queries_ = cache_.RandomQueries(int64_t{num_sequences()} * shape.window);
}

template <typename T>
int32_t EntryCase<T>::CountPast(int32_t list) const {
  const int32_t first = lengths_[list / shape_.num_heads] - shape_.window;
  int32_t count = 0;
  for (int32_t i = 0; i < size(list); ++i) {
    count += positions_[offsets_[list] + i] < first;
  }
  return count;
}

template <typename T>
int64_t EntryCase<T>::QueryRow(int32_t list, int32_t query,
                               int32_t q_head) const {
  const int32_t sequence = list / shape_.num_heads;
  const int32_t head = list % shape_.num_heads;
  return (int64_t{sequence} * shape_.window + query) * cache_.num_q_heads() +
         head * shape_.group_size + q_head;
}

template <typename T>
std::vector<double> EntryCase<T>::Weights(int32_t list, int32_t query,
                                          int32_t q_head, double* lse) const {
  const T* q = &queries_[QueryRow(list, query, q_head) * shape_.head_dim];
  const int32_t position =
      lengths_[list / shape_.num_heads] - shape_.window + query;
  std::vector<double> weights(size(list), 0.0);
  double max = -std::numeric_limits<double>::infinity();
  for (int32_t e = 0; e < size(list); ++e) {
    if (positions_[offsets_[list] + e] > position) continue;
    double dot = 0.0;
    for (int32_t i = 0; i < shape_.head_dim; ++i) {
      dot += double{simt::ToFloat(q[i])} *
             double{cache_.Value(slots_[offsets_[list] + e], false, i)};
    }
    weights[e] = dot * cache_.scale();
    max = std::max(max, weights[e]);
  }
  double sum = 0.0;
  for (int32_t e = 0; e < size(list); ++e) {
    const bool seen = positions_[offsets_[list] + e] <= position;
    weights[e] = seen ? std::exp(weights[e] - max) : 0.0;
    sum += weights[e];
  }
  for (double& weight : weights) {
    if (sum > 0.0) weight /= sum;
  }
  if (lse != nullptr) *lse = max + std::log(sum);
  return weights;
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_ENTRY_CASES_H_
