// Where a request is compressed, and how many pages and blocks the regions made
// there have.
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

// All heads.
HeadShape ShapeOf(const ModelLayout& layout);

// The largest cut of an eviction when `length` tokens are computed: whole
// pages, the last token stays in the tail.
int32_t LargestCut(int32_t length, int32_t page_size);

// The most pages that the region which a compression point makes has in any
// shard. Upper bounds of what ranks can do: each allocates budgets among its
// own heads.
int64_t PagesOf(const CompressionPoint& point, const ModelLayout& layout);
// What each shard may have of them; empty: the same.
std::vector<int64_t> ShardPagesOf(const CompressionPoint& point,
                                  const ModelLayout& layout);

// Settles what follows from a point's length and cut: budgets of a caller in
// place of headkv's and lukv's, so that neither page counts nor engines need
// the table, and its page total. O(1); by budgets per head, O(heads). Where
// nothing is covered, nothing is evicted: a table is not asked, and the total
// is 0.
void ResolvePoint(const std::shared_ptr<const BudgetTable>& table,
                  const ModelLayout& layout, CompressionPoint* point);

// Whole blocks to hold its page total.
int32_t RegionBlocks(const CompressionPoint& point, const ModelLayout& layout);

// The most pages that the point's region in a window group has in any shard; 0:
// it makes none. REQUIRES: a policy that ValidateWindows accepts.
int64_t WindowPagesOf(const CompressionPoint& point, int32_t group,
                      const ModelLayout& layout);

// Blocks that the regions of all window groups have at most, whatever the
// length: until their cuts fall out, beside what the windows hold.
int32_t WindowRegionBlocks(const CompressionPoint& point,
                           const ModelLayout& layout);

// The compressions of its prompt that a request asks for, ascending: those that
// free at least one block. Their budgets are fixed by the whole prompt, for
// every_chunk too; how a table divides them, by the length of each where they
// are shared: whoever goes on from one may have another prompt. REQUIRES: a
// valid eviction of a prompt of num_prompt tokens.
std::vector<CompressionPoint> PlanCompressions(const RequestEviction& eviction,
                                               int32_t num_prompt,
                                               const ModelLayout& layout);

// The same of a request that shares its compressed prefix: what its points have
// in common, its name included. O(table). REQUIRES: eviction.share_prefix.
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

// Its point when `length` tokens are computed: the same for all sharers.
CompressionPoint SharedPointAt(const SharedCompression& sharing, int32_t length,
                               const ModelLayout& layout);

// How RegionName::history tells the lengths of compressions, and back.
std::string EncodeHistory(std::span<const CompressionPoint> points);
// Likewise, behind what is there.
void AppendHistory(std::span<const CompressionPoint> points,
                   std::string* history);
std::vector<int32_t> DecodeHistory(absl::string_view history);

// The length of the point of `decode` that comes next when `length` tokens are
// computed; INT32_MAX: beyond every request. And that point.
int32_t NextLength(const DecodeCompression& decode, int32_t length);
CompressionPoint NextPoint(const DecodeCompression& decode, int32_t length,
                           const ModelLayout& layout);

// Whether its totals are known without its table: with whole pages and one
// shard a table only divides them.
bool KnowsTotals(const DecodeCompression& decode, const ModelLayout& layout);
// Its point at `length`, but for the division. REQUIRES: KnowsTotals.
CompressionPoint UndividedPointAt(const DecodeCompression& decode,
                                  int32_t length, const ModelLayout& layout);

// What a kDecode eviction does after the prompt, until `end` tokens are
// computed; null for other modes. Cost: that of WithEnd.
std::unique_ptr<const DecodeCompression> DecodeCompressionOf(
    const RequestEviction& eviction, int32_t num_prompt, int32_t end,
    const ModelLayout& layout);

// The same, known until `end`. Cost: O(1); where a table decides how many pages
// a region has, O(heads) for every point until a later end.
std::unique_ptr<const DecodeCompression> WithEnd(
    const DecodeCompression& decode, int32_t end, const ModelLayout& layout);

}  // namespace blockmgr

#endif  // SCHEDULER_COMPRESSION_POINTS_H_
