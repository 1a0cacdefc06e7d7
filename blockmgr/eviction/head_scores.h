// HeadKV's table: how much each head matters, measured offline.
#ifndef BLOCKMGR_EVICTION_HEAD_SCORES_H_
#define BLOCKMGR_EVICTION_HEAD_SCORES_H_

#include <cstdint>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/eviction/select.h"

namespace blockmgr {

// More heads than any model has, and than Apportion takes.
inline constexpr int64_t kMaxTableHeads = int64_t{1} << 16;

// Only how scores compare counts, not their size. A plain value;
// thread-compatible.
struct HeadScores {
  int32_t num_layers = 0;
  int32_t num_heads = 0;      // KV heads, or query heads
  std::vector<float> scores;  // [num_layers, num_heads], >= 0
  // How many of them make a KV head is the model's to say.
  bool of_query_heads = false;

  // Finite, >= 0, one above 0, as many as the sizes say, fewer heads than
  // kMaxTableHeads. Errors name the field, expected and got.
  absl::Status Validate() const;

  // That they are of a model of this shape: as many layers, and as many KV
  // heads or a multiple of them in query heads.
  absl::Status CheckShape(const HeadShape& shape) const;

  // Of KV heads, [num_layers * kv_heads]. The mean over the query heads of a
  // GQA group: the budget that the released program gives its query heads, on
  // average, for HeadKV shares out in proportion to scores (ALGORITHMS, section
  // 2.10; their sum would give the same budgets). REQUIRES: CheckShape is OK.
  std::vector<float> OfKvHeads(int32_t kv_heads) const;

  // One of two forms, told apart by their keys, each of which comes once:
  //   {"num_layers":..,"num_heads":..,"scores":[[..],..]}, one row a layer, of
  //   KV heads, or of a multiple of num_heads in query heads, whose scores are
  //   summed by group;
  //   {"LAYER-QUERYHEAD":[..],..}, as HeadKV publishes them: for every query
  //   head of every layer the scores of some probes, whose mean counts.
  static absl::StatusOr<HeadScores> FromJson(absl::string_view json);

  // From the bytes of a .npy file of whole numbers [prompts, layers, KV heads]:
  // how many entries each head kept of some prompts under a method that decides
  // by itself. The score of a head is its share of what all heads kept, as a
  // mean over prompts: long ones count no more than others. A protected tail
  // that is in the counts makes scores alike: it is the caller's to subtract.
  static absl::StatusOr<HeadScores> FromRetentionCounts(absl::string_view npy);
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_HEAD_SCORES_H_
