// Random entries and queries for the tests of scores, and attention weights in
// float64 written from the definition.
#ifndef TESTS_KERNELS_SCORE_CASES_H_
#define TESTS_KERNELS_SCORE_CASES_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {

using Matrix = std::vector<std::vector<double>>;

struct ScoreCaseOptions {
  int32_t window = 1;  // queries
  int32_t length = 1;  // tokens of the sequence
  // The entries of the window are there; otherwise any may be missing, and some
  // heads hold one or none.
  bool whole_window = true;
  // Every entry is there.
  bool everything = false;
};

// One layer of a sequence after an eviction or two: per head any subset of the
// positions, on any slots.
struct ScoreCase {
  ScoreCase(const ModelLayout& layout, const ScoreCaseOptions& options,
            uint64_t seed);

  EntryList Entries() const {
    return {.offsets = offsets, .slots = slots, .positions = positions};
  }
  QueryWindow Window() const {
    return {.queries = queries.data(), .count = num_queries, .length = length};
  }
  // Everything but the outputs.
  ScoreBatch Batch(const ScorerSpec& scorer) const;
  std::vector<float> Run(Backend& backend, const ScorerSpec& scorer) const;

  int64_t size() const { return std::ssize(slots); }
  int64_t head_size(int32_t head) const {
    return offsets[head + 1] - offsets[head];
  }
  std::span<const float> key(int64_t entry) const {
    return model.key(slots[entry]);
  }
  std::span<const float> value(int64_t entry) const {
    return model.value(slots[entry]);
  }

  Rng rng;
  PoolModel model;
  int32_t num_queries;
  int32_t length;
  float scale = 0.3f;
  std::vector<int64_t> offsets = {0};
  std::vector<SlotIndex> slots;
  std::vector<int32_t> positions;
  std::vector<float> queries;
};

// A layout with room for a case of `length` tokens.
ModelLayout LayoutFor(Rng& rng, DType dtype, int32_t length);

// Softmax, over the head's entries at positions up to the query's, of scale *
// <query, key>; zero for the other entries. [entries of the head]
std::vector<double> NaiveWeights(const ScoreCase& test, int32_t head,
                                 int32_t group_index, int32_t query);

// Scores with random norms per query head. Expects the scores that there are
// without, and products of the norms and `attention` (head, q_head of its
// group), [entries of the head]; infinity inside the window.
void ExpectProductsMatch(
    const ScoreCase& test, const ScorerSpec& scorer, Rng& rng,
    const std::function<std::vector<double>(int32_t, int32_t)>& attention);

std::vector<double> NaiveSoftmax(const std::vector<double>& logits);

}  // namespace blockmgr

#endif  // TESTS_KERNELS_SCORE_CASES_H_
