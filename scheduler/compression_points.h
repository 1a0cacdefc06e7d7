// Functions that compute the compression points of a request (CompressionPoint)
// and the pages and blocks of the regions made there.
#ifndef SCHEDULER_COMPRESSION_POINTS_H_
#define SCHEDULER_COMPRESSION_POINTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/strings/string_view.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/select.h"
#include "scheduler/request.h"
#include "scheduler/request_state.h"

namespace blockmgr {

// Returns the shape of the heads of a layer group, of all shards.
HeadShape ShapeOf(const ModelLayout& layout);

// Returns the largest cut of an eviction when `length` tokens are computed: a
// multiple of page_size below length, so that the last token stays in the tail.
int32_t LargestCut(int32_t length, int32_t page_size);

// Returns the most pages that the point's region has in any shard. This is an
// upper bound, because each rank divides the budget among its own heads.
int64_t CountPages(const CompressionPoint& point, const ModelLayout& layout);
// Returns the most pages of the region in each shard, [num_shards]. Returns an
// empty vector if CountPages holds for every shard.
std::vector<int64_t> ShardPagesOf(const CompressionPoint& point,
                                  const ModelLayout& layout);

// Completes a point whose length and cut are set: computes its page total. With
// headkv, lukv or duo, the table is evaluated and its budgets become budgets of
// a caller (BudgetKind::kExternal), so that the engine needs no table. If the
// cut is 0, the total is 0, and the table is not evaluated. O(1), or O(heads)
// with budgets per head.
void ResolvePoint(const std::shared_ptr<const BudgetTable>& table,
                  const ModelLayout& layout, CompressionPoint* point);

// Returns the most pages that the point's region in a layer group has in any
// shard: page_total in a group of full attention. Returns 0 if the point makes
// no region in the group. REQUIRES: ResolvePoint was called, and
// ValidateWindows accepts the policy.
int64_t CountGroupPages(const CompressionPoint& point, int32_t group,
                        const ModelLayout& layout);

// Returns how many whole blocks hold the point's page total.
int32_t CountRegionBlocks(const CompressionPoint& point,
                          const ModelLayout& layout);

// Returns the most blocks that the regions of all window groups have together,
// for a point at any length. A sequence holds these blocks besides those of its
// windows until the cuts have left the windows.
int32_t CountWindowRegionBlocks(const CompressionPoint& point,
                                const ModelLayout& layout);

// Returns the compressions of the prompt, ascending, without those that would
// free no block. With kEveryChunk, a ratio is taken of the whole prompt, so all
// compressions have the same budget. A table divides the budget by the length
// of the whole prompt. If the prefix is shared, the table divides it by the
// length of each point, because requests with other prompts use the region,
// too. REQUIRES: `eviction` is valid for a prompt of num_prompt tokens.
std::vector<CompressionPoint> PlanCompressions(const RequestEviction& eviction,
                                               int32_t num_prompt,
                                               const ModelLayout& layout);

// Returns what all points of a request that shares its compressed prefix have
// in common, and the name of the plan. O(table). REQUIRES:
// eviction.share_prefix.
SharedCompression ShareCompression(const RequestEviction& eviction,
                                   int32_t num_prompt,
                                   const ModelLayout& layout);

// Adds the next point of plan->decode to those listed, if the plan has one for
// a request that computes last_length tokens in all.
void ListNextPoint(int32_t last_length, const ModelLayout& layout,
                   EvictionPlan* plan);
// Lists the first point of a plan that has just been made, and forgets the
// scorer's state if nothing will read it.
void ListFirstPoint(int32_t last_length, const ModelLayout& layout,
                    EvictionPlan* plan);
// Returns whether ListNextPoint would add a point.
bool HasNextPoint(int32_t last_length, const EvictionPlan& plan);

// Returns the point of a shared plan when `length` tokens are computed. All
// requests that share the plan have this same point.
CompressionPoint SharedPointAt(const SharedCompression& sharing, int32_t length,
                               const ModelLayout& layout);

// Returns RegionName::history, which encodes the lengths of the points.
std::string EncodeHistory(std::span<const CompressionPoint> points);
// Appends the encoded lengths of `points` to `history`.
void AppendHistory(std::span<const CompressionPoint> points,
                   std::string* history);
// Returns the lengths that a history encodes.
std::vector<int32_t> DecodeHistory(absl::string_view history);

// Return the length of the next point of `decode` when `length` tokens are
// computed, and that point. The length is at most INT32_MAX, which no request
// reaches.
int32_t NextLength(const DecodeCompression& decode, int32_t length);
CompressionPoint NextPoint(const DecodeCompression& decode, int32_t length,
                           const ModelLayout& layout);

// Returns whether the page totals of the points of kDecode are known without
// the table, which may be null. With one shard and budgets in whole pages, a
// table divides the total but does not change it.
bool KnowsTotals(const BudgetTable* table, const EvictionPolicy& policy,
                 const ModelLayout& layout);
// Returns the point at `length` with its page total, but without budgets per
// head. REQUIRES: KnowsTotals.
CompressionPoint UndividedPointAt(const DecodeCompression& decode,
                                  int32_t length, const ModelLayout& layout);

// Returns the compressions of a kDecode eviction after the prompt, with
// region_blocks known until `end`. Returns null for other modes. Costs as much
// as WithEnd.
std::unique_ptr<const DecodeCompression> DecodeCompressionOf(
    const RequestEviction& eviction, int32_t num_prompt, int32_t end,
    const ModelLayout& layout);

// Returns a copy with region_blocks known until `end`. O(1) if KnowsTotals,
// otherwise O(heads) for every point between the old end and `end`.
std::unique_ptr<const DecodeCompression> WithEnd(
    const DecodeCompression& decode, int32_t end, const ModelLayout& layout);

}  // namespace blockmgr

#endif  // SCHEDULER_COMPRESSION_POINTS_H_
