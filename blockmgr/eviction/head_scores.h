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

// Scores of the heads of a model, by which headkv divides a budget. Only the
// proportions of the scores matter, not their size. A plain value;
// thread-compatible.
struct HeadScores {
  int32_t num_layers = 0;
  int32_t num_heads = 0;      // KV heads, or query heads
  std::vector<float> scores;  // [num_layers, num_heads], >= 0
  // Whether the scores are of query heads. The model says how many query heads
  // make a KV head.
  bool of_query_heads = false;

  // Checks that there are as many scores as the sizes say, and fewer than
  // kMaxTableHeads, all finite and >= 0, and at least one above 0. Errors name
  // the field, what was expected and what came.
  absl::Status Validate() const;

  // Checks that the scores fit a model of this shape: as many layers, and as
  // many KV heads, or a multiple of that number in query heads.
  absl::Status CheckShape(const HeadShape& shape) const;

  // Returns the scores of KV heads, [num_layers * kv_heads]. HeadKV divides a
  // budget in proportion to the scores of query heads to the power of `temp`.
  // The score of a KV head is therefore the power mean of its GQA group, so
  // that its score to the power of `temp` is the mean of the group's: the KV
  // head gets the mean of the budgets that HeadKV's released program gives the
  // group's query heads. REQUIRES: CheckShape is OK, temp >= 0.
  std::vector<float> OfKvHeads(int32_t kv_heads, double temp) const;

  // Decodes one of two forms, which differ by their keys. No key may occur
  // twice.
  //   {"num_layers":..,"num_heads":..,"scores":[[..],..]}, one row a layer, of
  //   KV heads, or of a multiple of num_heads in query heads; the scores of a
  //   group are then added up, whatever `temp` is;
  //   {"LAYER-QUERYHEAD":[..],..}, as HeadKV publishes them: for every query
  //   head of every layer the scores of some probes, whose mean counts.
  static absl::StatusOr<HeadScores> FromJson(absl::string_view json);

  // Decodes a .npy file of whole numbers [prompts, layers, KV heads]: how many
  // entries each head kept of some prompts, under a method that decides the
  // number itself. The score of a head is its share of what all heads kept,
  // averaged over prompts, so that long prompts count no more than short ones.
  // If the counts include a protected tail, the caller should subtract it: it
  // makes all scores alike.
  static absl::StatusOr<HeadScores> FromRetentionCounts(absl::string_view npy);
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_HEAD_SCORES_H_
